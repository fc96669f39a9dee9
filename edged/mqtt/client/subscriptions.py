"""What we are subscribed to, what the broker has confirmed, and which sink gets a message."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.subscribeoptions import SubscribeOptions

from edged.mqtt.client.message import ReceivedMessage, SharedAcknowledgement
from edged.mqtt.topics import check_filter, matches, specificity

Sink = Callable[[ReceivedMessage], None]

ROUTES = 4096


class _Subscription(NamedTuple):
    pattern: str
    qos: int
    sink: Sink
    as_published: bool
    kept_again: bool
    shared: bool = False


class Subscriptions:
    """Subscriptions are added from any thread; everything else happens on the network thread.

    `confirmed` is set while the broker has answered for all of them.
    """

    def __init__(self) -> None:
        self._all: tuple[_Subscription, ...] = ()
        self._lock = threading.Lock()
        self._sent = 0
        self._gone: list[str] = []
        self._waiting: dict[int, list[str]] = {}
        self._routes: dict[str, Sink | None] = {}
        self.confirmed = threading.Event()
        self.refused: dict[str, str] = {}  # filters, with the broker's reasons

    def add(
        self,
        filters: Sequence[str],
        qos: int,
        sink: Sink,
        *,
        as_published: bool = False,
        kept_again: bool = False,
        shared: bool = False,
    ) -> None:
        """Register; the next `extend` tells the broker."""
        for pattern in filters:
            check_filter(pattern)
        with self._lock:
            self.confirmed.clear()
            self._gone = [pattern for pattern in self._gone if pattern not in filters]
            self._all += tuple(
                _Subscription(pattern, qos, sink, as_published, kept_again, shared) for pattern in filters
            )
            self._routes = {}

    def remove(self, filters: Sequence[str], sink: Sink | None = None) -> None:
        """Forget filters, with `sink` only for it; the next `extend` tells the broker of those left by all.

        What still comes on them has no sink.
        """

        def goes(entry: _Subscription) -> bool:
            return entry.pattern in filters and sink in (None, entry.sink)

        with self._lock:
            sent = self._all[: self._sent]
            self._sent -= sum(map(goes, sent))
            self._all = tuple(entry for entry in self._all if not goes(entry))
            left = {entry.pattern for entry in self._all}
            self._gone += [pattern for pattern in filters if pattern not in left]
            self._routes = {}

    def session_present(self, *, present: bool) -> None:
        """A connection was made: forget what the broker has forgotten.

        On the first connection everything is subscribed in any case: a session left by an earlier
        process may hold the filters of another configuration.
        """
        if not present or self._waiting:
            self._sent = 0
        self._waiting.clear()

    def renew(self, client: Client) -> None:
        """Subscribe to what the broker does not know."""
        self.extend(client)
        self._confirm()

    def extend(self, client: Client) -> None:
        """Subscribe to what was added since, and end what was removed."""
        gone, self._gone = self._gone, []
        if gone:
            client.unsubscribe(gone)
        every = self._all
        fresh = every[self._sent :]
        if not fresh:
            return
        self._sent = len(every)
        _, mid = client.subscribe([(entry.pattern, _options(client, entry)) for entry in fresh])
        if mid is not None:
            self._waiting[mid] = [entry.pattern for entry in fresh]

    def answered(self, mid: int, reasons: Iterable[Any]) -> Iterator[tuple[str, str]]:
        """Note the broker's answer; gives filter and reason of each refusal."""
        for pattern, reason in zip(self._waiting.pop(mid, ()), reasons, strict=False):
            if reason.is_failure:
                self.refused[pattern] = str(reason)
                yield pattern, str(reason)
        self._confirm()

    def sink(self, topic: str) -> Sink | None:
        """Find the sink for messages on this topic."""
        try:
            return self._routes[topic]
        except KeyError:
            return self._find(topic)

    def _find(self, topic: str) -> Sink | None:
        routes = self._routes
        found = [entry for entry in self._all if matches(entry.pattern, topic)]
        # RabbitMQ turns the dots of a topic into slashes: `press.7` comes as `press/7`.
        found = found or [entry for entry in self._all if matches(entry.pattern.replace(".", "/"), topic)]
        best = min(found, key=lambda entry: specificity(entry.pattern), default=None)
        if len(routes) >= ROUTES:
            routes.clear()
        sink = None if best is None else best.sink
        if best is not None and best.shared:
            sinks = list({entry.sink: None for entry in found if entry.shared})
            sink = best.sink if len(sinks) == 1 else partial(_to_all, sinks)
        routes[topic] = sink
        return sink

    def _confirm(self) -> None:
        with self._lock:
            if not self._waiting and self._sent == len(self._all):
                self.confirmed.set()


def _to_all(sinks: Sequence[Sink], delivery: ReceivedMessage) -> None:
    """Hand a message to several sinks; it is acknowledged once all of them have done so."""
    shared = SharedAcknowledgement(len(sinks))
    for sink in sinks:
        sink(replace(delivery, shared=shared))


def _options(client: Client, entry: _Subscription) -> Any:
    """At MQTT 5, retained messages come again at every start only where that is wanted."""
    if client.protocol == MQTTProtocolVersion.MQTTv5:
        often, once = SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE, SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
        return SubscribeOptions(
            qos=entry.qos,
            retainAsPublished=entry.as_published,
            retainHandling=often if entry.kept_again else once,
        )
    return entry.qos
