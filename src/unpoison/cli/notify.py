"""`unpoison notify`: sends one notice to see whether it arrives, and says what came back."""

import os
import socket
import sys
import time

import click

from unpoison.cli.input_output import print_json
from unpoison.cli.target import load
from unpoison.decide.options import settings_from
from unpoison.errors import ConfigError
from unpoison.model.wording import one_line
from unpoison.notifying.commands import Commands
from unpoison.notifying.forms import written
from unpoison.notifying.notice import Kind, Notice, Place
from unpoison.notifying.sending import Answer, send
from unpoison.notifying.targets import FORMS, Target, check_targets, targets_of


@click.command(
    "notify",
    epilog="\b\nExamples:\n"
    "  unpoison notify --app shop:app\n"
    "  unpoison notify https://hooks.slack.com/services/T0/B0/secret\n"
    "  unpoison notify 'smtp://mx.example/?from=a@shop.example&to=b@shop.example'",
)
@click.argument("urls", metavar="[URL]...", nargs=-1)
@click.option("--app", metavar="MODULE:APP", help="Send to all that this app notifies, in place of URL.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array of what came back.")
def command(urls: tuple[str, ...], app: str | None, as_json: bool) -> None:
    """Send one notice, marked as a test, and say what came back.

    To the URLs given, to those of the app, or to those in UNPOISON_NOTIFY. Exits with 1 if one of them did not take it. Of
    each only scheme and host are shown: the rest may be secret.
    """
    if urls and app is not None:
        raise click.UsageError("URL and --app both say where to. Give one of them.")
    found, link = _chosen(urls, app)
    answers = [(target, _sent(target, app or "", link)) for target in found]
    if as_json:
        print_json([{"target": target.shown, "sent": answer.is_sent, "answer": answer.said} for target, answer in answers])
    else:
        for target, answer in answers:
            click.echo(f"{target.shown}: {'sent' if answer.is_sent else 'not sent'}: {one_line(answer.said)}")
    if not all(answer.is_sent for _, answer in answers):
        sys.exit(1)


def _chosen(urls: tuple[str, ...], app: str | None) -> tuple[list[Target], str]:
    if app is not None:
        settings = load(app).settings
    else:
        named = {name: value for name, value in os.environ.items() if name in ("UNPOISON_NOTIFY", "UNPOISON_NOTIFY_LINK")}
        settings = settings_from({"url": "memory://", "notify": urls or None}, environment=named)
    if not settings.notify:
        raise ConfigError(
            f"Nobody is to be notified: give a URL, or App(…, notify=[…]) with --app, or set UNPOISON_NOTIFY. The forms are "
            f"{FORMS}."
        )
    check_targets(settings.notify, settings.notify_link)
    return targets_of(settings.notify), settings.notify_link or ""


def _sent(target: Target, app: str, link: str) -> Answer:
    now = time.time()
    notice = Notice(
        kind=Kind.TEST,
        subject="test",
        size=0.0,
        title="This is a test",
        source="",
        since=now,
        bad="Nothing is wrong",
        doing="It sends notices of poison here, in this form.",
        todo=Commands(app, "URL").of_status(),
    )
    return send(target, written(notice, Place(socket.gethostname(), os.getpid(), app, link), now, now))
