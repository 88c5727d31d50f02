"""``quorate log``: make, list, describe, transfer and delete logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorate.cli.options import client_options, log_name
from quorate.cli.output import give_help, print_json, print_line, print_table
from quorate.cli.status import replica_rows, short
from quorate.errors import LogNotFound

if TYPE_CHECKING:
    from quorate.cli.options import ClientOptions

__all__ = ["log"]


@click.group(invoke_without_command=True)
@click.pass_context
def log(context: click.Context) -> None:
    """Make, list, describe, transfer and delete logs."""
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
    heads = ("NODE", "ROLE", "MATCH", "LAG", "STATE")
    print_table(heads, replica_rows(found), numbers=("MATCH", "LAG"))


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
