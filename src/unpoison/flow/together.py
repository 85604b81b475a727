"""What holds for several apps that one process runs together?"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from unpoison.brokers import check_sources
from unpoison.decide.options import ConsumerOptions, Settings
from unpoison.errors import ConfigError
from unpoison.flow.runnable import RunnableApp
from unpoison.port.broker_url import dlqs_of, with_dlq, without_dlqs


def check_apps(apps: Sequence[RunnableApp]) -> None:
    if not any(app.consumers() for app in apps):
        raise ConfigError(
            "The app has no consumer, so there is nothing to run. Decorate a function with @app.consumer('orders')."
        )
    _check_sources(apps)


def versions_of(settings: Sequence[Settings]) -> str | None:
    """Of the users' code: one version, unless apps of several are run together."""
    return ", ".join(dict.fromkeys(each.code_version for each in settings if each.code_version)) or None


def named_consumers(apps: Sequence[RunnableApp]) -> dict[int, list[ConsumerOptions]]:
    """The consumers of each app. Where two apps have a source of the same name, each of them is named with its app."""
    times = Counter(options.source for app in apps for options in app.consumers())
    return {
        id(app): [
            replace(options, label=f"{options.source} ({app.reference})") if times[options.source] > 1 else options
            for options in app.consumers()
        ]
        for app in apps
    }


def _check_sources(apps: Sequence[RunnableApp]) -> None:
    """Those of all apps at one broker together, with the DLQs that each of them names."""
    urls: dict[str, str] = {}
    sources: dict[str, set[str]] = {}
    for app in apps:
        plain = without_dlqs(app.settings.url)
        sources.setdefault(plain, set()).update(each.source for each in app.consumers())
        urls.setdefault(plain, plain)
        for source, dlq in dlqs_of(app.settings.url).items():
            urls[plain] = with_dlq(urls[plain], source, dlq)
    for plain, url in urls.items():
        check_sources(url, sources[plain])
