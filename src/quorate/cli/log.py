"""``quorate log``: make, list, describe, set, transfer and delete logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorate.cli.options import client_options, log_name
from quorate.cli.output import give_help, print_json, print_line, print_table
from quorate.cli.status import replica_rows, short
from quorate.errors import LogNotFound
from quorate.types import PRIORITY_MAX

if TYPE_CHECKING:
    from quorate.cli.options import ClientOptions

__all__ = ["log"]


@click.group(invoke_without_command=True)
@click.pass_context
def log(context: click.Context) -> None:
    """Make, list, describe, set, transfer and delete logs."""
    give_help(context)


@log.command()
@click.argument("name", callback=log_name)
@client_options
def create(options: ClientOptions, name: str) -> None:
    """Make the log NAME, and wait until it accepts appends."""
    with options.client() as client:
        made = client.create_log(name)
    if options.as_json:
        print_json({"name": made.name, "incarnation": made.incarnation})
    else:
        print_line(f"log {made.name} made")


@log.command("list")
@client_options
def list_(options: ClientOptions) -> None:
    """Print the name of every log."""
    with options.client() as client:
        names = client.logs()
    if options.as_json:
        print_json({"logs": names})
    else:
        for name in names:
            print_line(name)


@log.command()
@click.argument("name", callback=log_name)
@client_options
def describe(options: ClientOptions, name: str) -> None:
    """Show where the log NAME begins and ends, and its replicas."""
    with options.client() as client:
        incarnation = client.log(name).incarnation
        logs = client.status()["logs"]
    for found in logs:
        if found["incarnation"] == incarnation:
            break
    else:
        raise LogNotFound(f"no node that answers has a replica of {name}")
    if options.as_json:
        print_json(found)
        return
    print_line(f"log          {click.style(found['name'], bold=True)}")
    print_line(f"incarnation  {found['incarnation']}")
    print_line(f"leader       {short(found['leader'])}, term {found['term']}")
    print_line(f"records      offsets {found['first_offset']} to before {found['end_offset']}")
    print_line(f"committed    entry {found['committed']}")
    print_line()
    heads = ("NODE", "ROLE", "PRIORITY", "MATCH", "LAG", "STATE")
    print_table(heads, replica_rows(found), numbers=("PRIORITY", "MATCH", "LAG"))


def _settings(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    """The priorities that the command line sets, by node."""
    priorities = {}
    for text in given:
        key, value = (*text.split("=", 1), "")[:2]
        what, node = (*key.split(".", 1), "")[:2]
        if what != "priority" or not node:
            raise click.BadParameter(f"{text!r}: the settings of a log are priority.NODE=0 to 255")
        # int() refuses thousands of digits with an error of its own.
        if not value.isdecimal() or len(value) > 3 or int(value) > PRIORITY_MAX:
            raise click.BadParameter(f"{text!r}: a priority is 0 to {PRIORITY_MAX}")
        priorities[node] = int(value)
    return priorities


@log.command("set")
@click.argument("name", callback=log_name)
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1, required=True, callback=_settings)
@client_options
def set_(options: ClientOptions, name: str, settings: dict[str, int]) -> None:
    """Change settings of the log NAME, and wait until its leader has carried that out.

    \b
    priority.NODE=0..255  The node with the highest priority leads, once it has kept up
                          for ten seconds and was up for a minute. 100 unless it was set;
                          0: it leads only while no other node can.
    """
    with options.client() as client:
        client.set_log(name, priorities=settings)
    if options.as_json:
        print_json({"name": name, "priorities": settings})
    else:
        print_line(f"log {name} set")


@log.command()
@click.argument("name", callback=log_name)
@click.argument("node", required=False)
@client_options
def transfer(options: ClientOptions, name: str, node: str | None) -> None:
    """Give the leadership of the log NAME to NODE.

    Without NODE the leader chooses the fittest node. Appends go on: those that arrive meanwhile
    wait for the new leader. The command waits while NODE is down or lacks too many entries, at most
    for the timeout.
    """
    with options.client() as client:
        leader = client.transfer(name, node)
    if options.as_json:
        print_json({"name": name, "leader": leader})
    else:
        print_line(f"{leader} leads {name}")


@log.command()
@click.argument("name", callback=log_name)
@client_options
def delete(options: ClientOptions, name: str) -> None:
    """Delete the log NAME with all its records."""
    with options.client() as client:
        client.delete_log(name)
    if options.as_json:
        print_json({"name": name})
    else:
        print_line(f"log {name} deleted")
