"""The session with the broker, as other threads use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from edged.errors import BrokerError
from edged.mqtt.client import connection
from edged.mqtt.client.message import MessageProperties, OutgoingMessage, ReceivedMessage
from edged.mqtt.client.network_thread import NetworkThread
from edged.mqtt.client.subscriptions import Sink
from edged.mqtt.topics import is_topic

LOOK_SECONDS = 0.05  # between two looks at why a session is not ready


class Session(NetworkThread):
    """A connection with the broker that comes back by itself; any thread may call its methods.

    They leave their work to the network thread and wake it. See `NetworkThread` for the parameters.
    """

    def start(self) -> None:
        """Connect in the background, and reconnect after each loss."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Send what waits, for at most `timeout` seconds, take leave of the broker, end the thread.

        The last will is not sent.
        """
        self._deadline = time.monotonic() + timeout
        self._closing.set()
        self._waker.wake()
        if self._thread.ident is None:  # it was never started
            self._waker.close()
        else:
            self._thread.join(timeout + 2 * connection.CONNECT_TIMEOUT)

    def subscribe(
        self,
        filters: Sequence[str],
        qos: int,
        sink: Sink,
        *,
        as_published: bool = False,
        kept_again: bool = False,
        shared: bool = False,
    ) -> None:
        """Have messages on these filters delivered to `sink`, on the network thread.

        Call it before `start`: what the broker has kept for us comes at once, and messages that nobody
        wants are dropped. Where filters overlap, the most specific one gets the message. `sink` must
        be quick and must not raise: an error in it costs the connection, and the message comes again.
        Messages of QoS 1 come again after each reconnect until `ack` was called for them. With `as_published`
        `retain` says how a message was published (MQTT 5), else only that it was kept. With `kept_again`
        what the broker has kept comes with the first connection of each process, also where it still knows
        our session. Messages on `shared` filters go to the sinks of all of them that match.

        Raises ConfigError when a filter is not valid.
        """
        self._subscriptions.add(
            filters, qos, sink, as_published=as_published, kept_again=kept_again, shared=shared
        )
        self._waker.wake()

    def unsubscribe(self, filters: Sequence[str], sink: Sink | None = None) -> None:
        """Have no more messages delivered on these filters, which were subscribed to as they are.

        With `sink` others still receive theirs.
        """
        self._subscriptions.remove(filters, sink)
        self._waker.wake()

    def connect(self, timeout: float, remedy: str = "") -> None:
        """Start, and wait until the broker has confirmed the subscriptions.

        Raises BrokerError when an attempt fails for a reason that the next has as well, or none succeeds in
        time; the session has ended then. `remedy` adds where its user can change what is wrong.
        """
        self.start()
        until = time.monotonic() + timeout
        while not self.wait_ready(LOOK_SECONDS):
            if self._condition.failure is None and time.monotonic() < until:
                continue
            reason, own = self._condition.failure or (self.problem or "the broker does not confirm", "")
            self.stop(0.0)
            both = "; ".join(filter(None, (own, remedy)))
            raise BrokerError(
                f"no connection to the broker: {reason}", where=self._config.address, remedy=both
            )

    def wait_ready(self, timeout: float) -> bool:
        """Wait until the broker has confirmed the subscriptions; False when that took too long."""
        return self._online.wait(timeout) and self._subscriptions.confirmed.wait(timeout)

    def ack(self, deliveries: Sequence[ReceivedMessage]) -> None:
        """Acknowledge, in the order of delivery; those of an earlier connection are skipped."""
        epoch = self.epoch
        mids = [
            delivery.mid
            for delivery in deliveries
            if delivery.epoch == epoch
            and delivery.qos
            and (delivery.shared is None or delivery.shared.give())
        ]
        if mids:
            self._acks.append((epoch, mids))
            self._waker.wake()

    def drop(self) -> None:
        """Reconnect, so that the broker delivers again whatever was not acknowledged."""
        self._dropping = True
        self._waker.wake()

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        correlation: bytes | None = None,
        properties: MessageProperties | None = None,
        on_done: Callable[[], None] | None = None,
    ) -> bool:
        """Hand a message over; False when it was refused and stays the caller's.

        It is refused when the session was stopped, the topic is not one that can be published to, or
        too many QoS 1 messages wait. `correlation` is short for properties with nothing else.
        `on_done` is called on the network thread as soon as the broker has acknowledged a QoS 1
        message, or refused it for good, which is logged.
        """
        if self._closing.is_set() or not is_topic(topic):
            return False
        if correlation is not None:
            properties = (properties or MessageProperties())._replace(correlation=correlation)
        accepted = self._publisher.outgoing.put(
            OutgoingMessage(topic, payload, qos, retain, properties, on_done)
        )
        self._waker.wake()
        return accepted

    def room(self, qos: int) -> int:
        """How many more messages of this QoS can wait before any is lost or refused."""
        return self._publisher.outgoing.room(qos)

    @property
    def refused(self) -> dict[str, str]:
        """Filters that the broker has refused, with its reasons."""
        return self._subscriptions.refused

    @property
    def connected(self) -> bool:
        """Whether the broker has accepted us and the connection still stands."""
        return self._online.is_set()

    @property
    def problem(self) -> str | None:
        """What is wrong with the connection, in one line; None when all is well."""
        return self._condition.problem

    @property
    def pending(self) -> int:
        """QoS 1 messages that the broker has not acknowledged."""
        return self._publisher.pending

    @property
    def dropped(self) -> int:
        """Messages lost because too many were waiting, or because the broker rejected them."""
        return self._publisher.outgoing.dropped

    @property
    def in_flight(self) -> int:
        """How many messages the broker sends before it waits for acknowledgements, as far as is known."""
        return connection.in_flight(self._config, self.protocol)


class StreamSession:
    """The session of a device as one of its several streams uses it.

    The broker counts unacknowledged messages of all streams together. `peers` are the sessions of the other
    streams; this one adds itself.
    """

    def __init__(self, session: Session, peers: list[StreamSession]) -> None:
        self._session = session
        self._peers = peers
        self._received = self._acked = self._epoch = 0
        peers.append(self)

    @property
    def in_flight(self) -> int:
        """How many messages the broker sends before it waits; 0 once all streams together hold half of it."""
        most = self._session.in_flight
        return most if 2 * sum(peer.unacknowledged for peer in self._peers) < most else 0

    @property
    def unacknowledged(self) -> int:
        """Messages of this stream that are not acknowledged."""
        return self._received - self._acked

    def count(self, delivery: ReceivedMessage) -> None:
        """Count a message of this stream; on the network thread."""
        if delivery.epoch != self._epoch:
            self._epoch, self._received, self._acked = delivery.epoch, 0, 0
        self._received += delivery.qos > 0

    def leave(self) -> None:
        """Remove this stream from its peers."""
        self._peers.remove(self)

    def drop(self) -> None:
        """Reconnect, so that the broker delivers again what is not acknowledged."""
        self._session.drop()

    @property
    def connected(self) -> bool:
        """Whether the session is connected."""
        return self._session.connected

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> bool:
        """Publish a message; see `Session.publish`."""
        return self._session.publish(topic, payload, qos=qos, retain=retain)

    def ack(self, deliveries: Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages; on the ingest thread."""
        self._acked += sum(delivery.qos > 0 and delivery.epoch == self._epoch for delivery in deliveries)
        self._session.ack(deliveries)
