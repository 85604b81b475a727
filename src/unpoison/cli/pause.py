"""`unpoison pause` and `unpoison resume`: a person stops a source for the whole fleet, and lets it go on."""

import time
from collections.abc import Collection, Sequence
from contextlib import suppress

import click

from unpoison.cli.fleet import check_exists, opened_store
from unpoison.cli.input_output import print_json
from unpoison.cli.source_status import InStore, dated, look
from unpoison.cli.status_text import outage_ended, pause_ended, resume_command, said_by
from unpoison.cli.target import Fleet, fleet, fleet_options
from unpoison.errors import BrokerUnavailable
from unpoison.flow.store_link import EXCHANGE_EVERY
from unpoison.model.wording import counted, one_line
from unpoison.store.letters.people import operator
from unpoison.store.port import OPERATOR, Pause, SharedCircuit, Store

REASON_LIMIT = 500
NOBODY = "No consumer that has this store is alive."
OTHER_STORE = "If consumers run, their store is another one: name it with --app or --store."


def a_reason(ctx: click.Context, param: click.Parameter, value: str) -> str:
    text = value.strip()
    if 0 < len(text) <= REASON_LIMIT:
        return text
    raise click.BadParameter(f"It must have 1 to {REASON_LIMIT} characters: others read it in the log and in status.", ctx, param)


@click.command(
    "pause",
    epilog="\b\nExamples:\n"
    "  unpoison pause orders --app shop:app --reason 'billing migration'\n"
    "  unpoison pause orders --url sqlite:///shop.db --reason INC-17 --json",
)
@click.argument("source")
@fleet_options
@click.option("--reason", metavar="TEXT", required=True, callback=a_reason, help="Why. Shown in status and in logs.")
@click.option("--json", "as_json", is_flag=True, help="Print the pause as one JSON object.")
def pause(source: str, app: str | None, url: str | None, store: str | None, reason: str, as_json: bool) -> None:
    """Pause a source: its consumers start nothing more until it is resumed.

    All consumers hear it within about 2 seconds, and those that start later do as well. What runs already ends as usual. Messages
    wait at the broker; none is charged, and consumers keep their membership. If the source is paused already, nothing changes.
    """
    chosen = fleet(app, url, store)
    with opened_store(chosen.store, chosen.url, "Pausing", lambda: check_exists(chosen.url, source, chosen.consumed)) as opened:
        before = _by_person(opened, source)
        if before is None:
            check_exists(chosen.url, source, {*chosen.consumed, *(sign.source for sign in opened.consumers())})
            opened.pause(Pause(source, OPERATOR, reason, operator()))
        now = before or _by_person(opened, source)
        alive = len(opened.consumers(source))
    if now is None:
        raise click.ClickException(f"{source!r} was resumed by someone else at the same moment. To see it: unpoison status")
    if as_json:
        print_json({"source": source, **dated(now), "changed": before is None, "consumers": alive})
    else:
        click.echo(_already(now) if before is not None else _paused(now, alive, chosen.named))


def _by_person(store: Store, source: str) -> Pause | None:
    return next((pause for pause in store.pauses(source) if pause.kind == OPERATOR), None)


def _paused(pause: Pause, alive: int, named: str) -> str:
    heard = (
        f"{_heard(alive)}. What runs then ends as usual, and nothing more starts: messages wait at the broker, uncharged."
        if alive
        else f"{NOBODY} One that is started later starts no message. {OTHER_STORE}"
    )
    return (
        f"{pause.source!r} is paused by {one_line(pause.by)}: {one_line(pause.reason)}\n{heard}\n"
        f"To resume it: {resume_command(pause.source, named)}"
    )


def _heard(alive: int) -> str:
    return f"{counted(alive, 'consumer')} {'hears' if alive == 1 else 'hear'} it within about {EXCHANGE_EVERY:g} s"


def _already(pause: Pause) -> str:
    said = said_by(pause, time.time())
    return f"{pause.source!r} is paused already, by {said}: {one_line(pause.reason).rstrip('.')}. Nothing was changed."


@click.command(
    "resume",
    epilog="\b\nExamples:\n"
    "  unpoison resume orders --app shop:app\n"
    "  unpoison resume orders --url amqp://mq/shop --store postgresql://db/shop",
)
@click.argument("source")
@fleet_options
@click.option("--json", "as_json", is_flag=True, help="Print what was ended as one JSON object.")
def resume(source: str, app: str | None, url: str | None, store: str | None, as_json: bool) -> None:
    """Resume a source: a person says that all is well.

    Ends the pause by `unpoison pause`, the pause because of too many dead letters, and every outage that the fleet knows of for
    this source. What is still wrong is noticed again. All consumers hear it within about 2 seconds, and start slowly at first.
    """
    chosen = fleet(app, url, store)
    with opened_store(chosen.store, chosen.url, "Resuming", lambda: check_exists(chosen.url, source, chosen.consumed)) as opened:
        if source not in (known := look(opened).sources()):
            _refuse_typo(chosen, source, known)
        closed = opened.circuits(source)
        ended = opened.resume(source, operator())
        for circuit in closed:
            opened.close_circuit(source, circuit.dependency)
        alive = len(opened.consumers(source))
        others = look(opened)
    if as_json:
        document = {"source": source, "ended": [dated(each) for each in ended], "closed": [dated(each) for each in closed]}
        print_json(document | {"consumers": alive})
    elif ended or closed:
        click.echo(_resumed(source, ended, closed, alive))
    else:
        click.echo(f"{source!r} is not paused, and no outage of it is known. Nothing was changed.{_meant(source, others)}")


def _refuse_typo(chosen: Fleet, source: str, known: Collection[str]) -> None:
    """Nothing is known of this source. A broker that is away cannot say whether it exists; then it is not paused, that is all."""
    with suppress(BrokerUnavailable):
        check_exists(chosen.url, source, {*chosen.consumed, *known})


def _meant(source: str, others: InStore) -> str:
    """Which sources could be resumed, if there are any."""
    names = sorted({each.source for each in others.pauses} | {each.source for each in others.circuits})
    return f" Sources that are paused or have an outage: {', '.join(map(repr, names))}" if source not in names and names else ""


def _resumed(source: str, ended: Sequence[Pause], closed: Sequence[SharedCircuit], alive: int) -> str:
    heard = f"{_heard(alive)}, and {'starts' if alive == 1 else 'start'} slowly at first." if alive else f"{NOBODY} {OTHER_STORE}"
    now = time.time()
    lines = [f"Ended the pause {pause_ended(each, now)}" for each in ended]
    lines += [f"Ended the outage {outage_ended(each, now)}" for each in closed]
    if closed:
        lines.append("Messages that were put off because of it start when their time comes; that may take some minutes.")
    return "\n".join([f"{source!r} is resumed. {heard}", *lines])
