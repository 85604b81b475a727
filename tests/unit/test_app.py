"""What an app refuses, and where its options come from."""

import inspect
import pydoc
import types
import warnings

import pydantic
import pytest

from unpoison import App, Backoff, ConfigError, DLQManager, PayloadError, PoisonPillHandler, RunResult
from unpoison.app_internals import consumers_of, reference_to
from unpoison.decide.options import settings_from


def test_a_payload_over_the_limit_is_refused_before_anything_is_sent():
    app = App("memory://too-large", max_body=10)
    with pytest.raises(PayloadError, match="has 13 bytes, the limit is 10"):
        app.publish("orders", "x" * 13)
    with pytest.raises(PayloadError):
        app.publish_many("orders", ["ok", "x" * 13])
    assert app._broker().depth("orders").ready == 0


@pytest.mark.parametrize(
    "given", [{"id": "\ud800"}, {"key": "\ud800"}, {"headers": {"a": "\ud800"}}, {"headers": {"\ud800": "a"}}]
)
def test_text_that_cannot_be_stored_is_refused_by_publish(given):
    with pytest.raises(PayloadError, match="cannot be written as UTF-8"):
        App("memory://text").publish("orders", 1, **given)


@pytest.mark.parametrize("given", [{"id": 7}, {"key": 7}, {"headers": {"a": 7}}, {"headers": {7: "a"}}])
def test_what_is_not_text_is_refused_by_publish(given):
    with pytest.raises(PayloadError, match="must be text"):
        App("memory://text").publish("orders", 1, **given)


def test_one_source_has_one_consumer():
    app = App("memory://twice")
    app.consumer("orders")(lambda order: None)
    with pytest.raises(ConfigError, match="'orders' has two consumers"):
        app.consumer("orders")(lambda order: None)


@pytest.mark.parametrize(
    "clash", [{"max_attempts": 3}, {"max_attempts": None}, {"classify": lambda error: None}, {"max_age": None}]
)
def test_a_ready_handler_decides_alone_what_it_decides(clash):
    with pytest.raises(ConfigError, match=f"handler= together with {next(iter(clash))}="):
        App("memory://clash").consumer("orders", handler=PoisonPillHandler(), **clash)(lambda order: None)


def test_backoff_and_timeout_combine_with_a_ready_handler():
    app, handler = App("memory://combined"), PoisonPillHandler(max_attempts=7)
    app.consumer("orders", handler=handler, backoff=Backoff.immediate(), timeout=3)(lambda order: None)
    options = consumers_of(app)["orders"].options
    assert (options.limits.max_attempts, options.limits.backoff, options.timeout) == (7, Backoff.immediate(), 3.0)
    assert handler.backoff != Backoff.immediate()  # the user's own object stays as it is


def test_none_means_no_limit_and_not_given_means_the_default():
    app = App("memory://limits")
    app.consumer("unlimited", max_attempts=None, max_age=None, timeout=None)(lambda order: None)
    app.consumer("default")(lambda order: None)
    unlimited, default = consumers_of(app)["unlimited"].options, consumers_of(app)["default"].options
    assert (unlimited.limits.max_attempts, unlimited.limits.max_age, unlimited.timeout) == (None, None, None)
    assert (default.limits.max_attempts, default.timeout) == (5, 300.0)
    assert App("memory://limits", max_body=None).settings.max_body is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"concurrency": 0}, "concurrency must be 1 or more"),
        ({"threads": 0}, "threads must be 1 or more"),
        ({"isolation": "docker"}, "isolation must be one of 'process', 'thread', 'inline'"),
        ({"isolation": "process"}, "memory:// lives in one process"),
        ({"key_from": "body:"}, "key_from must be"),
        ({"key_from": "tenant"}, "key_from must be"),
        ({"timeout": -1}, "timeout must be a duration"),
        ({"max_attempts": 0}, "max_attempts must be 1 or more"),
    ],
)
def test_an_option_that_cannot_work_is_refused_when_the_consumer_is_registered(options, words):
    with pytest.raises(ConfigError, match=words):
        App("memory://options").consumer("orders", **options)(lambda order: None)


@pytest.mark.parametrize("source", ["", " orders", "orders\n", None, 7])
def test_a_source_must_have_a_name(source):
    with pytest.raises(ConfigError, match="A source must be a name"):
        App("memory://names").consumer(source)(lambda order: None)


def test_an_argument_wins_over_the_environment_and_that_over_the_default():
    environment = {"UNPOISON_URL": "sqlite:///elsewhere.db", "UNPOISON_GRACE": "3", "UNPOISON_CREATE": "no", "OTHER": "x"}
    found = settings_from({"url": None, "grace": 9.0}, environment=environment)
    assert (found.url, found.grace, found.create, found.prefetch) == ("sqlite:///elsewhere.db", 9.0, False, 256)


def test_a_misspelt_variable_is_warned_about_with_the_names_there_are():
    with pytest.warns(UserWarning, match="UNPOISON_GRAZE is not a setting.*UNPOISON_GRACE"):
        settings_from({"url": "memory://"}, environment={"UNPOISON_GRAZE": "3"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings_from({"url": "memory://"}, environment={"UNPOISON_GRACE": "3"})


@pytest.mark.parametrize("variable", [{"UNPOISON_GRACE": "soon"}, {"UNPOISON_CREATE": "maybe"}, {"UNPOISON_PREFETCH": "1.5"}])
def test_a_variable_that_is_no_value_is_refused_by_its_name(variable):
    with pytest.raises(ConfigError, match=next(iter(variable))):
        settings_from({"url": "memory://"}, environment=variable)


@pytest.mark.parametrize(
    ("url", "words"), [("pigeon://x", "names no broker"), ("shop.db", "names no broker"), ("", "needs a broker URL")]
)
def test_a_url_that_no_broker_understands_is_refused_at_once(url, words):
    with pytest.raises(ConfigError, match=words):
        App(url)


def test_a_password_in_a_url_is_not_shown():
    with pytest.raises(ConfigError) as caught:
        App("mqtt://ann:s3cret@broker/1")
    assert "s3cret" not in str(caught.value)
    assert "ann:***@broker" in str(caught.value)


def test_workers_find_an_app_by_its_module_and_name():
    app = App("memory://home")
    assert reference_to(app, {"__name__": "shop.jobs", "jobs": app}, "orders") == "shop.jobs:jobs"


def test_an_app_that_cannot_be_imported_by_name_is_refused_with_what_to_do():
    app = App("memory://nowhere")
    with pytest.raises(ConfigError, match="isolation='thread'"):
        reference_to(app, {"__name__": "shop"}, "orders")
    with pytest.raises(ConfigError, match="isolation='thread'"):
        reference_to(app, {"__name__": "__main__", "app": app}, "orders")  # typed into a shell


def test_the_decorated_function_stays_a_plain_function():
    app = App("memory://plain")

    @app.consumer("orders")
    def double(number: int) -> int:
        return 2 * number

    assert double(21) == 42


class Model(pydantic.BaseModel):
    id: int = 1


@pytest.mark.parametrize(
    "payloads", [{"a": 1}, "abc", b"abc", bytearray(b"abc"), memoryview(b"abc"), types.MappingProxyType({}), Model(), 7, None]
)
def test_publish_many_refuses_what_is_one_payload(payloads):
    app = App("memory://one-payload")
    with pytest.raises(PayloadError, match=r"takes several payloads.*app\.publish\('orders', payload\)"):
        app.publish_many("orders", payloads)
    assert app._broker().depth("orders").ready == 0


@pytest.mark.parametrize("payloads", [[], (1, 2), {3}, range(2), iter([1]), {"a": 1}.values(), (n for n in [1])])
def test_publish_many_takes_whatever_has_several(payloads):
    assert len(App("memory://several").publish_many("orders", payloads)) <= 2


def test_ids_for_publish_many_are_one_for_each_payload():
    app = App("memory://ids")
    assert app.publish_many("orders", [1, 2], ids=["a", "b"]) == ["a", "b"]
    assert [each.id for each in app._broker().fetch("orders", 10)] == ["a", "b"]
    with pytest.raises(PayloadError, match="2 payloads and 1 ids"):
        app.publish_many("orders", [1, 2], ids=["a"])
    with pytest.raises(PayloadError, match="id must be text"):
        app.publish_many("orders", [1], ids=[7])


def test_a_misspelt_source_is_warned_of_once_with_the_one_that_was_meant(caplog):
    app = App("memory://misspelt")
    app.consumer("orders")(lambda order: None)
    app.publish("orders", 1)
    assert caplog.records == []
    for _ in range(2):
        app.publish("ordres", 1)
        App("memory://misspelt").publish_many("ordres", [1])
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    said = record.getMessage()
    assert "'ordres' did not exist" in said
    assert "Did you mean 'orders'?" in said
    assert "consumes 'orders'" in said


def test_a_source_that_the_broker_knows_is_not_warned_of(caplog):
    App("memory://known").consumer("orders")(lambda order: None)
    App("memory://known")._broker().open(["elsewhere"])
    App("memory://known").publish("elsewhere", 1)
    assert caplog.records == []


def test_help_shows_the_defaults_that_hold_when_nothing_is_given():
    text = pydoc.plain(pydoc.render_doc(App.consumer))
    assert "max_attempts: int | None = 5" in text
    assert "max_age: float | datetime.timedelta | None = datetime.timedelta(days=1)" in text
    assert "backoff: unpoison.model.backoff.Backoff | None = Backoff.exponential(base=1, max=60)" in text
    app = pydoc.plain(pydoc.render_doc(App))
    for shown in ("create: bool | None = True", "grace: float | datetime.timedelta | None = 25.0", "prefetch: int | None = 256"):
        assert shown in app
    assert "max_body: int | None = 16777216" in app
    assert "<object" not in app


def test_every_option_of_a_consumer_is_explained_in_its_help():
    for option in inspect.signature(App.consumer).parameters.keys() - {"self"}:
        assert f"`{option}`" in App.consumer.__doc__, option
    for option in inspect.signature(App).parameters:
        assert f"`{option}`" in App.__doc__, option


def test_an_app_shows_what_users_call_and_nothing_of_its_inside():
    public = {name for name in dir(App("memory://inside")) if not name.startswith("_")}
    assert public == {
        "close",
        "consumer",
        "dlq",
        "lifespan",
        "on_failure",
        "on_worker_start",
        "on_worker_stop",
        "publish",
        "publish_async",
        "publish_many",
        "run",
        "settings",
    }


@pytest.mark.parametrize("isolation", ["thread", "inline"])
def test_hooks_can_be_given_to_the_consumer_itself(isolation):
    app, calls = App("memory://hooks-" + isolation), []
    app.consumer(
        "orders",
        isolation=isolation,
        max_attempts=2,
        backoff=Backoff.immediate(),
        on_retry=lambda message, metadata, delay: calls.append(("retry", message.body, metadata.attempt, delay)),
        on_dlq=lambda message, metadata, exc: calls.append(("dlq", message.body, metadata.attempt, str(exc))),
    )(fails)
    app.publish("orders", b"1")
    app.run(until_empty=True)
    assert calls == [("retry", b"1", 1, 0.0), ("dlq", b"1", 2, "the warehouse is closed")]


def fails(body: bytes):
    raise ConnectionError("the warehouse is closed")


@pytest.mark.parametrize("hook", ["on_dlq", "on_retry"])
def test_hooks_are_given_to_the_consumer_or_to_its_handler_and_not_to_both(hook):
    with pytest.raises(ConfigError, match=f"handler= together with {hook}="):
        App("memory://both").consumer("orders", handler=PoisonPillHandler(), **{hook: print})(lambda order: None)


def test_a_hook_that_cannot_be_called_is_refused_when_the_consumer_is_registered():
    with pytest.raises(ConfigError, match="on_dlq must be"):
        App("memory://hook").consumer("orders", on_dlq="mail")(lambda order: None)


def test_a_run_returns_what_was_done_by_source_and_in_total():
    app = App("memory://result")
    app.consumer("orders", isolation="inline", max_attempts=2, backoff=Backoff.immediate())(fails)
    app.consumer("emails", isolation="inline")(lambda body: None)
    app.consumer("mail", isolation="inline")(lambda body: None)
    app.consumer("unused", isolation="inline")(lambda body: None)
    app.publish("orders", b"1")
    app.publish_many("emails", [b"1", b"2"])
    app.publish("mail", b"1")
    result = app.run(until_empty=True)
    assert type(result) is RunResult
    assert (result.sources["orders"].retried, result.sources["orders"].dead, result.sources["orders"].done) == (1, 1, 0)
    assert (result.sources["emails"].done, result.sources["unused"].done) == (2, 0)
    assert (result.total.done, result.total.dead, result.total.retried, result.total.discarded) == (3, 1, 1, 0)
    assert result.stopped_by is None


@pytest.mark.parametrize(
    "arguments", [("sqlite:///shop.db", "orders"), ("postgresql://ada:secret@db/shop",), (App("memory://"), "x")]
)
def test_a_dlq_manager_that_a_user_makes_says_what_to_write_instead(arguments):
    with pytest.raises(ConfigError, match=r"app\.dlq\('orders'\)") as caught:
        DLQManager(*arguments)
    assert "secret" not in str(caught.value)
