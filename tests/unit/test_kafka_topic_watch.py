"""A topic that is gone, or another one under the same name, is noticed; a server that does not answer changes nothing."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from unpoison.brokers.kafka import commit_metadata, topology
from unpoison.brokers.kafka.topology import MISSING, UNKNOWN, TopicWatch

GONE = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
SILENT = KafkaException(KafkaError(KafkaError._TIMED_OUT))
DENIED = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))


@pytest.fixture
def looks(monkeypatch):
    """A watch, and how it looks once more: each look gets the next answer."""
    monkeypatch.setattr(topology, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(topology, "LOOK_AGAIN", 0.0)
    asked: list[Future] = []

    def describe_topics(_, **__):
        asked.append(Future())
        return {"orders": asked[-1]}

    watch = TopicWatch(SimpleNamespace(admin=SimpleNamespace(describe_topics=describe_topics)), ["orders"])

    def look(answer):
        watch.tick()
        watch.tick()  # not answered yet
        if isinstance(answer, Exception):
            asked[-1].set_exception(answer)
        else:
            asked[-1].set_result(SimpleNamespace(topic_id=answer))
        watch.tick()
        return watch

    return look


def test_what_is_seen_first_is_so(looks):
    assert looks("a").id_of("orders") == "a"
    assert looks("a").missing == frozenset()


def test_a_change_is_one_when_it_was_seen_twice(looks):
    looks("a")
    assert looks(GONE).id_of("orders") == "a"
    watch = looks(GONE)
    assert (watch.id_of("orders"), watch.missing) == (MISSING, {"orders"})
    looks("b")
    watch = looks("b")
    assert (watch.id_of("orders"), watch.missing, watch.replaced) == ("b", frozenset(), {"orders"})


def test_a_server_that_did_not_know_it_for_a_moment_changes_nothing(looks):
    for answer in ("a", GONE, "a", GONE, "a"):
        assert looks(answer).id_of("orders") == "a"
    assert looks("a").replaced == set()


@pytest.mark.parametrize("answer", [SILENT, DENIED])
def test_no_answer_changes_nothing(looks, answer):
    assert looks(answer).id_of("orders") is None
    looks("a")
    looks(answer)
    assert looks(answer).id_of("orders") == "a"


def test_one_that_we_have_made_again_was_not_made_by_others(looks):
    looks("a")
    looks(GONE)
    looks(GONE).forget_missing()
    watch = looks("b")
    assert (watch.id_of("orders"), watch.missing, watch.replaced) == ("b", frozenset(), set())


def test_a_server_without_ids_has_topics_all_the_same(looks):
    assert looks("A" * 22).id_of("orders") == UNKNOWN


@pytest.mark.parametrize("id_", ["8HEYWX9aSw2RiyU99I0gSA", "ab+/-_9aSw2RiyU99I0gSA", ""])
def test_a_text_is_read_with_and_without_the_id_of_its_topic(id_):
    text = commit_metadata.encode(5, [(5, "A"), (7, "b")], 9, {5: [commit_metadata.Start("host @x:1", 1.0)]})
    assert commit_metadata.split_topic_id(commit_metadata.with_topic_id(text, id_)) == (text, id_)
    assert commit_metadata.decode(5, commit_metadata.with_topic_id(text, id_)) == commit_metadata.decode(5, text)
