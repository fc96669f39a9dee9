"""Which sink gets a message."""

from __future__ import annotations

import pytest

from edged.mqtt.client.subscriptions import Subscriptions
from tests.mqtt.inbox import Inbox


@pytest.mark.parametrize(
    ("topic", "wanted"),
    [
        ("edged/press.7/request/train", "commands"),
        ("edged/press/7/request/train", "commands"),  # as RabbitMQ delivers it
        ("edged/press/7/request/config/get", "slashed"),
        ("sensors/press/7/a/b", "samples"),
        ("edged/press/8/request/train", None),
        ("edged/press/7/requests", None),
    ],
)
def test_a_topic_whose_dots_have_become_slashes_finds_its_sink(topic: str, wanted: str | None) -> None:
    subscriptions = Subscriptions()
    sinks = {name: Inbox() for name in ("commands", "slashed", "samples")}
    subscriptions.add(["edged/press.7/request/+"], 1, sinks["commands"])
    subscriptions.add(["edged/press.7/request/+/+"], 1, sinks["slashed"])
    subscriptions.add(["sensors/press.7/#"], 1, sinks["samples"])
    assert subscriptions.sink(topic) is (None if wanted is None else sinks[wanted])


def test_a_filter_that_names_the_topic_as_it_comes_goes_first() -> None:
    subscriptions, dots, slashes = Subscriptions(), Inbox(), Inbox()
    subscriptions.add(["a.b/c"], 1, dots)
    subscriptions.add(["a/b/#"], 1, slashes)
    assert subscriptions.sink("a/b/c") is slashes
    assert subscriptions.sink("a.b/c") is dots
