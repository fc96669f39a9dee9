from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.errors import ConfigError
from edged.mqtt.topics import Topics, check_filter, is_topic, matches, specificity


def test_every_topic_of_the_contract() -> None:
    topics = Topics("edged/press-7")
    assert topics.status == "edged/press-7/status"
    assert topics.metrics == "edged/press-7/metrics"
    assert topics.predictions == "edged/press-7/predictions"
    assert topics.events == "edged/press-7/events"
    assert topics.state("model") == "edged/press-7/state/model"
    assert topics.requests == "edged/press-7/request/+"
    assert topics.request("train") == "edged/press-7/request/train"
    assert topics.response("train") == "edged/press-7/response/train"
    assert topics.progress("t-1") == "edged/press-7/progress/t-1"
    assert topics.weights(7, "manifest") == "edged/press-7/weights/7/manifest"
    assert topics.weights(7, 0) == "edged/press-7/weights/7/0"


def test_one_filter_covers_all_commands() -> None:
    topics = Topics("site/a/press-7")
    assert matches(topics.requests, topics.request("rollback"))


@given(st.text())
def test_a_transaction_from_outside_stays_one_topic_level(transaction: str) -> None:
    topic = Topics("edged/a").progress(transaction)
    assert topic.count("/") == 3
    assert not set("+#\0") & set(topic)
    assert not topic.endswith("/")


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/b/c", "a/b", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/", True),
        ("+/+", "/a", True),
        ("+", "/a", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("#", "a/b", True),
        ("#", "$SYS/load", False),
        ("+/load", "$SYS/load", False),
        ("$SYS/#", "$SYS/load", True),
        ("+/b/#", "a/b", True),
        ("A/b", "a/b", False),
        ("$share/workers/a/+", "a/b", True),
    ],
)
def test_filters_match_as_the_specification_says(pattern: str, topic: str, expected: bool) -> None:
    assert matches(pattern, topic) is expected


def test_the_most_specific_filter_sorts_first() -> None:
    expected = ["sensors/a/label", "sensors/+/label", "sensors/+/#", "sensors/#", "#"]
    assert sorted(expected, key=specificity) == expected


@pytest.mark.parametrize("pattern", ["", "a/#/b", "a/b#", "a+/b", "a\0b", "x" * 70_000])
def test_what_is_no_filter_is_refused_with_a_remedy(pattern: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_filter(pattern)
    assert caught.value.remedy


@pytest.mark.parametrize("pattern", ["a", "/", "+", "#", "a/+/b/#", "$SYS/#", "äöü/+"])
def test_what_is_a_filter_is_taken(pattern: str) -> None:
    check_filter(pattern)


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0", "\ud800", "x" * 65_536])
def test_what_cannot_be_published_to(topic: str) -> None:
    assert not is_topic(topic)
