"""`unpoison alerts`: prints what monitoring needs: rules for Prometheus, a dashboard for Grafana, alarms for CloudWatch."""

from collections.abc import Sequence
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from unpoison.alerting.alert import RUNBOOK, Thresholds
from unpoison.alerting.cloudwatch import template
from unpoison.alerting.dashboard import dashboard
from unpoison.alerting.promql import checked_labels
from unpoison.alerting.rules import document
from unpoison.alerting.yaml_text import Value, yaml_text
from unpoison.app_internals import consumers_of
from unpoison.brokers import check_sources, native_names_for
from unpoison.cli.input_output import Duration, print_json, share
from unpoison.cli.target import load
from unpoison.errors import CapabilityError, ConfigError
from unpoison.port.broker_url import masked, scheme_of

RULES_HEAD = "# Alerts of unpoison for Prometheus. Printed by unpoison alerts; what to do about each: {}\n"
TEMPLATE_HEAD = "# Alarms of unpoison for Amazon CloudWatch, a CloudFormation template. Printed by unpoison alerts --cloudwatch\n"


def some_share(ctx: click.Context, param: click.Parameter, value: str) -> float:
    found = share(ctx, param, value)
    if not 0 < found < 1:
        raise click.BadParameter(f"{value!r} is never, or always. Write a share above 0 and below 1, such as 1%.", ctx, param)
    return found


def labels_from(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """job,namespace"""
    try:
        return checked_labels([each.strip() for each in value.split(",")] if value.strip() else [])
    except ConfigError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def runbook_from(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if urlsplit(value).scheme not in ("http", "https"):
        raise click.BadParameter(f"{value!r} is not an address. Write https://… of the page with the runbook.", ctx, param)
    return value.partition("#")[0]


@click.command(
    "alerts",
    epilog="\b\nExamples:\n"
    "  unpoison alerts --depth 500 --oldest 1h > unpoison.rules.yml\n"
    "  unpoison alerts --dashboard > unpoison.json\n"
    "  unpoison alerts --cloudwatch orders emails > alarms.yml",
)
@click.argument("sources", metavar="[SOURCE]...", nargs=-1)
@click.option("--dashboard", "wants_dashboard", is_flag=True, help="Print the dashboard for Grafana instead.")
@click.option("--cloudwatch", is_flag=True, help="Print alarms for sources in Amazon SQS, a CloudFormation template, instead.")
@click.option("--app", metavar="MODULE:APP", help="With --cloudwatch: the app, for its sources and the prefix of its queues.")
@click.option("--depth", type=click.IntRange(0), default=100, show_default=True, help="More dead letters than this are many.")
@click.option(
    "--oldest", type=Duration(above_zero=True), default="15m", show_default=True, help="How long a message may wait: 90s, 15m."
)
@click.option(
    "--share",
    "most",
    callback=some_share,
    default="1%",
    show_default=True,
    metavar="SHARE",
    help="Of messages that may fail for good.",
)
@click.option(
    "--by",
    callback=labels_from,
    default="job",
    show_default=True,
    metavar="LABELS",
    help="Labels that tell fleets apart which have queues of the same name, such as job,namespace.",
)
@click.option(
    "--runbook-url", callback=runbook_from, default=RUNBOOK, metavar="URL", help="Where your runbook is.  [default: ours]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of YAML.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    sources: Sequence[str],
    wants_dashboard: bool,
    cloudwatch: bool,
    app: str | None,
    depth: int,
    oldest: float,
    most: float,
    by: tuple[str, ...],
    runbook_url: str,
    as_json: bool,
) -> None:
    """Print alerts for Prometheus, a dashboard for Grafana or alarms for CloudWatch.

    Rules go into a file below rule_files of prometheus.yml. Severity page is for waking somebody, ticket for working hours. Each
    alert leads to its section of the runbook. Nothing is asked of a broker, and nothing is changed.
    """
    if wants_dashboard and cloudwatch:
        raise click.UsageError("--dashboard and --cloudwatch are two documents. Ask for one of them.")
    if not cloudwatch and (sources or app):
        raise click.UsageError("Rules and the dashboard are for every source, so none is named. Sources go with --cloudwatch.")
    _refuse_ignored(ctx, wants_dashboard=wants_dashboard, cloudwatch=cloudwatch)
    chosen = Thresholds(depth=depth, oldest=oldest, share=most, labels=by, runbook=runbook_url)
    if wants_dashboard:
        print_json(dashboard(runbook_url))
    elif cloudwatch:
        _print(template(_queues(sources, app), chosen), TEMPLATE_HEAD, as_json=as_json)
    else:
        _print(document(chosen), RULES_HEAD.format(runbook_url), as_json=as_json)


def _refuse_ignored(ctx: click.Context, *, wants_dashboard: bool, cloudwatch: bool) -> None:
    """An option that would change nothing is refused: whoever gives it expects that it does."""
    for_rules = {"most": "--share", "by": "--by"} if wants_dashboard or cloudwatch else {}
    for_both = {"depth": "--depth", "oldest": "--oldest"} if wants_dashboard else {}
    for name, option in (for_rules | for_both).items():
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            what = "The dashboard has no thresholds" if wants_dashboard else "CloudWatch knows nothing of that"
            raise click.UsageError(f"{what}: leave out {option}.")


def _print(shown: dict[str, Value], head: str, *, as_json: bool) -> None:
    if as_json:
        print_json(shown)
    else:
        click.echo(head + yaml_text(shown), nl=False)


def _queues(sources: Sequence[str], app: str | None) -> dict[str, str]:
    """The work queue of each source, with its DLQ."""
    url = "sqs://"
    if app is not None:
        loaded = load(app)
        url, sources = loaded.settings.url, sources or list(consumers_of(loaded))
        if scheme_of(url) != "sqs":
            raise CapabilityError(
                f"CloudWatch watches queues in Amazon SQS, and {app!r} uses {masked(url)}. See: unpoison alerts"
            )
    if not sources:
        raise click.UsageError("Name the sources, or an app that has them: --cloudwatch orders emails, or --app module:app")
    check_sources(url, sources)
    names = [{purpose: name for name, purpose in native_names_for(url, source).items()} for source in sources]
    return {each["its messages"]: each["its dead letters"] for each in names}
