"""What does `python -m servers` do? Starts servers so that a person can play, and stops them again.

run      starts them, prints their addresses, stays until Ctrl-C, stops them (make servers)
start    starts them and leaves them running, until
stop
status   what runs; --json for scripts
"""

import json
import shlex
import signal
import sys
from types import FrameType

import click
from rich.console import Console
from rich.table import Table

import servers
from servers import Owner, Server, ServerFailed, ServerMissing

OUT = Console(highlight=False)
LOUD = Console(stderr=True, highlight=False)
some_names = click.argument("names", nargs=-1, metavar="[NAME]…")
as_json = click.option("--json", "json_wanted", is_flag=True, help="For scripts: name, url, variable, running.")


@click.group(help="Private servers for tests, benchmarks and play, all on 127.0.0.1. Names: " + ", ".join(servers.ENTRIES))
def main() -> None:
    pass


@main.command(help="Start them (all, unless named), print their addresses, stop them at Ctrl-C.")
@some_names
def run(names: tuple[str, ...]) -> None:
    # SIGTERM ends like Ctrl-C; for kill -9 there is the guardian.
    signal.signal(signal.SIGTERM, _as_interrupt)
    owner = Owner.own()
    try:
        started = _start(names, owner)
        if not started:
            sys.exit(1)
        _show(started)
        OUT.print("\nThey run until Ctrl-C. Their data and logs go with them; until then they are in", owner.folder, sep="\n")
        while True:
            signal.pause()
    except KeyboardInterrupt:
        LOUD.print("\nStopping…")
    finally:
        # A second Ctrl-C must not leave anything behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        servers.stop_all(owner)


@main.command(help="Start them (all, unless named) and leave them running until `stop`.")
@some_names
@as_json
def start(names: tuple[str, ...], json_wanted: bool) -> None:
    started = _start(names, Owner.nobody())
    _show(started, json_wanted=json_wanted)
    sys.exit(0 if len(started) == len(names or servers.ENTRIES) else 1)


@main.command(help="Stop what `start` has started, and remove its data.")
def stop() -> None:
    servers.stop_all(Owner.nobody())


@main.command(help="What `start` has started.")
@as_json
def status(json_wanted: bool) -> None:
    _show(servers.running(Owner.nobody()), json_wanted=json_wanted)


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _start(names: tuple[str, ...], owner: Owner) -> list[Server]:
    """What can be had; the others get one loud line each."""
    started = []
    for name in names or servers.ENTRIES:
        try:
            with LOUD.status(f"{name}: getting and starting it"):
                started.append(servers.shared(name, owner))
        except (ServerMissing, ServerFailed) as error:
            LOUD.print(f"[bold red]{name} is not there:[/] ", end="")
            LOUD.print(str(error), markup=False)
    return started


def _show(shown: list[Server], *, json_wanted: bool = False) -> None:
    if json_wanted:
        click.echo(json.dumps([_facts(server) for server in shown]))
        return
    for server in shown:
        click.echo(f"export {server.entry.variable}={shlex.quote(server.url)}")
        if http := getattr(server, "http_url", None):
            click.echo(f"export {server.entry.variable.replace('_URL', '_HTTP_URL')}={shlex.quote(http)}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("server", "version", "address"):
        # An address that is cut off or broken in two cannot be copied.
        table.add_column(title, overflow="fold", no_wrap=title == "address")
    for server in shown:
        table.add_row(server.entry.name, server.version() if server.given or server.running else "stopped", server.url)
    OUT.print()
    OUT.print(table)


def _facts(server: Server) -> dict[str, object]:
    return {
        "name": server.entry.name,
        "url": server.url,
        "variable": server.entry.variable,
        "running": bool(server.given) or server.running,
    }


if __name__ == "__main__":
    main(prog_name="python -m servers")
