"""``quorate pipeline``: read, transform, move and archive logs with Spark."""

from __future__ import annotations

from importlib import import_module

import click

from quorate.cli.output import give_help

__all__ = ["pipeline"]

# Each command is in the module of its name.
_COMMANDS = ("init", "run", "replay", "ingest", "archive")


class _PipelineCommands(click.Group):
    """Loads only the command that is used."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        found: click.Command = getattr(import_module(f"quorate.cli.pipeline.{name}"), name)
        return found


@click.group(cls=_PipelineCommands, invoke_without_command=True)
@click.pass_context
def pipeline(context: click.Context) -> None:
    """Read, transform, move and archive logs with Spark.

    \b
    quorate pipeline init paid       writes paid.py, a pipeline to begin with
    quorate pipeline run paid.py     runs it: takes the new records, and ends
    """
    give_help(context)
