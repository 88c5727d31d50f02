"""``quorate log``: make, list, describe and delete logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorate.cli.options import client_options
from quorate.cli.output import print_json, print_table
from quorate.cli.status import replica_rows, short
from quorate.errors import LogNotFound

if TYPE_CHECKING:
    from quorate.cli.options import ClientOptions

__all__ = ["log"]


@click.group()
def log() -> None:
    """Make, list, describe and delete logs."""


@log.command()
@click.argument("name")
@client_options
def create(options: ClientOptions, name: str) -> None:
    """Make the log NAME. Done when it can be appended to."""
    with options.client() as client:
        made = client.create_log(name)
    if options.as_json:
        print_json({"name": made.name, "incarnation": made.incarnation})
    else:
        click.echo(f"log {made.name} made")


@log.command("list")
@client_options
def list_(options: ClientOptions) -> None:
    """Name every log."""
    with options.client() as client:
        names = client.logs()
    if options.as_json:
        print_json({"logs": names})
    else:
        for name in names:
            click.echo(name)


@log.command()
@click.argument("name")
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
    click.echo(f"log          {click.style(found['name'], bold=True)}")
    click.echo(f"incarnation  {found['incarnation']}")
    click.echo(f"leader       {short(found['leader'])}, term {found['term']}")
    click.echo(f"records      offsets {found['first_offset']} to before {found['end_offset']}")
    click.echo(f"committed    entry {found['committed']}")
    click.echo()
    heads = ("NODE", "ROLE", "MATCH", "LAG", "STATE")
    print_table(heads, replica_rows(found), numbers=("MATCH", "LAG"))


@log.command()
@click.argument("name")
@client_options
def delete(options: ClientOptions, name: str) -> None:
    """Delete the log NAME with all its records."""
    with options.client() as client:
        client.delete_log(name)
    if options.as_json:
        print_json({"name": name})
    else:
        click.echo(f"log {name} deleted")
