"""The thread of a session: it connects for ever, delivers, acknowledges, publishes.

All calls into paho are made on this thread; other threads leave their work in queues and wake it.
So an acknowledgement can never slip from one connection into the next, where its packet id may
belong to another message.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from typing import Any

from edged.config import MqttConfig
from edged.domain.protocols import ConnectionListener
from edged.errors import EdgedError
from edged.logs import get_logger
from edged.mqtt.client import connection
from edged.mqtt.client.connection import PacketClient, Will
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.client.packets import PacketSocket
from edged.mqtt.client.publisher import BrokerLimits, Publisher
from edged.mqtt.client.reconnect import Backoff, ConnectionState, ProtocolChoice
from edged.mqtt.client.subscriptions import Subscriptions

TICK = 1.0
SILENT = "no answer to our CONNECT", "is this an MQTT port? with TLS?"
NEITHER = (
    "no version of MQTT that we speak is accepted",
    "is this an MQTT port? with TLS? if so, update the broker",
)

log = get_logger("edged.mqtt")


class NetworkThread:
    """Makes the connection with the broker, again after each loss, and moves messages both ways.

    It takes what other threads leave in its queues. `Session` is how they do so. `epoch` is the number of the
    present connection, 0 before the first; `protocol` the MQTT version in use.

    `client_id` must stay the same over restarts: the broker keeps our messages under it. `will` is topic,
    payload and retain flag of what the broker says when we vanish, or a function that is asked for them
    before each connection. With `clean` each connection begins anew: nothing of an earlier one is delivered,
    or sent at QoS 0. The listener's `online` is called on the network thread after each connection was made
    (subscriptions are already on their way, so a birth message comes after them), its `connection_changed`
    after that and after each connection was lost. Of each QoS `backlog` messages may wait to be sent; see
    `OutgoingQueues`.

    Raises ConfigError when a certificate or key cannot be used.
    """

    def __init__(
        self,
        config: MqttConfig,
        *,
        client_id: str,
        will: Will | None = None,
        clean: bool = False,
        listener: ConnectionListener | None = None,
        backlog: int = 10_000,
    ) -> None:
        self._config = config
        self._client_id = client_id
        self._will, self._clean = will, clean
        self._listener = listener
        self._choice = ProtocolChoice(config.protocol)
        self._backoff = Backoff(config.constants.reconnect_max)
        self._publisher = Publisher(backlog)
        self._subscriptions = Subscriptions()
        self._acks: deque[tuple[int, list[int]]] = deque()
        self.epoch = self._strangers = 0
        self._online = threading.Event()
        self._answered = self._born = self._dropping = False
        self._closing = threading.Event()
        self._deadline = 0.0
        self._condition = ConnectionState(config.host, config.port, client_id)
        self.protocol = self._choice.protocol
        self._client = self._make_client()
        self._waker = WakeupPipe()
        self._thread = threading.Thread(target=self._run, name="edged-mqtt", daemon=True)

    def _run(self) -> None:
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                self._connection()
            except OSError as problem:
                self._condition.complain("mqtt_unreachable", *connection.failure(problem, self._config))
            except EdgedError as problem:
                self._condition.complain("mqtt_failed", problem.line(), "")
            except Exception:
                log.exception("mqtt_failed", remedy="reconnecting")
            self._after(began)
            self._closing.wait(self._backoff.delay())
        self._waker.close()

    def _after(self, began: float) -> None:
        """Bring everything into the state between two connections."""
        was_online = self._online.is_set()
        self._online.clear()
        self._condition.record_end()
        self._subscriptions.confirmed.clear()
        self._dropping = False
        self._acks.clear()
        try:
            if (wire := self._client.wire) is not None:
                wire.close()
            if was_online and self._listener is not None:
                self._listener.connection_changed()
        except Exception:
            log.exception("mqtt_failed", remedy="reconnecting")
        if self._clean:  # after the listener, which then publishes nothing more
            self._publisher.outgoing.forget_fast()
        self._backoff.record_end(time.monotonic() - began if was_online else 0.0)

    def _connection(self) -> None:
        if self._choice.protocol != self.protocol:
            self._change_protocol()
        connection.renew(self._client, self._config)
        connection.renew_will(self._client, self._will)
        self._answered = self._born = False
        self._publisher.forget_forbidden(self._client)
        self._client.reconnect()
        wire = self._client.wire
        if wire is not None:
            self._serve(wire)
        if wire is not None and wire.problem is not None and not self._answered:
            raise wire.problem
        if not self._answered and not self._closing.is_set():
            self._choice.closed_silently()
            final = self._choice.exhausted
            self._condition.complain(
                "mqtt_refused", *(NEITHER if final and self._config.protocol == "5" else SILENT), final=final
            )

    def _serve(self, wire: PacketSocket) -> None:
        deadline = time.monotonic() + self._choice.patience
        with selectors.DefaultSelector() as selector:
            selector.register(wire, selectors.EVENT_READ)
            selector.register(self._waker, selectors.EVENT_READ)
            tick = 0.0
            self._send(wire)
            while self._client.wire is wire:
                readable = self._wait(wire, selector)
                if readable:
                    wire.fill()
                self._send(wire)
                # Messages are handed on last: who is woken by them then finds the interpreter free.
                if readable and self._client.wire is wire:
                    self._receive(wire)
                if time.monotonic() >= tick:
                    tick = time.monotonic() + TICK
                    self._client.loop_misc()
                # What the broker has acknowledged makes room for more, which nothing else would wake us for.
                self._send(wire) if readable else self._write(wire)
                if not self._answered and time.monotonic() > deadline:
                    return

    def _wait(self, wire: PacketSocket, selector: selectors.BaseSelector) -> bool:
        """Until there is something to do; whether there may be something to read."""
        if wire.lost:
            return True
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wire.unsent else 0)
        if selector.get_key(wire).events != events:
            selector.modify(wire, events)
        # Bytes in TLS and messages that have just found room are nothing a selector could tell.
        decrypted = wire.holds_decrypted
        at_once = decrypted or (wire.room and self._online.is_set() and self._publisher.outgoing.fast)
        ready = {key.fileobj: event for key, event in selector.select(0.0 if at_once else TICK)}
        if self._waker in ready:
            self._waker.clear()
        return decrypted or bool(ready.get(wire, 0) & selectors.EVENT_READ)

    def _receive(self, wire: PacketSocket) -> None:
        received = time.monotonic()
        while self._client.wire is wire:
            for delivery in wire.read(self.epoch, received):
                self._deliver(delivery)
            if not wire.offer() and not wire.lost:
                break
            self._client.loop_read()
            self._news()

    def _deliver(self, delivery: ReceivedMessage) -> None:
        sink = self._subscriptions.sink(delivery.topic)
        if sink is not None:
            sink(delivery)
            return
        if not self._strangers:
            remedy = (
                "the broker still has a subscription of an earlier configuration; such messages are dropped"
            )
            log.warning("mqtt_unexpected_topic", topic=delivery.topic, remedy=remedy)
        self._strangers += 1
        if delivery.qos:
            self._acks.append((self.epoch, [delivery.mid]))

    def _news(self) -> None:
        """Tell others what paho's callbacks have noted, now that no lock of paho is held."""
        self._publisher.report_done()
        if self._online.is_set() and not self._born:
            self._born = True
            self._subscriptions.renew(self._client)
            if self._listener is not None:
                self._listener.online()
                self._listener.connection_changed()

    def _send(self, wire: PacketSocket) -> None:
        client = self._client
        if self._online.is_set():
            self._send_acks(wire)
            self._subscriptions.extend(client)
            self._publisher.send(client, wire)
            self._publisher.report_done()
        self._write(wire)
        if self._dropping or (self._closing.is_set() and self._finished(wire)):
            client.disconnect()
            self._write(wire)

    def _write(self, wire: PacketSocket) -> None:
        if self._client.want_write():
            self._client.loop_write()
        wire.flush()

    def _send_acks(self, wire: PacketSocket) -> None:
        while self._acks:
            epoch, mids = self._acks.popleft()
            if epoch == self.epoch:
                wire.ack(mids)

    def _finished(self, wire: PacketSocket) -> bool:
        if not self._online.is_set() or time.monotonic() >= self._deadline:
            return True
        return self._publisher.idle and not self._acks and not wire.unsent

    # The client and its callbacks.

    def _make_client(self) -> PacketClient:
        client = connection.make_client(
            self._config, self._client_id, self.protocol, self._will, clean=self._clean
        )
        client.on_connect = lambda _, __, flags, reason, properties: self._connected(
            flags, reason, properties
        )
        client.on_disconnect = lambda _, __, ___, reason, ____: self._disconnected(str(reason))
        client.on_subscribe = lambda _, __, mid, reasons, ___: self._subscribed(mid, reasons)
        client.on_publish = lambda _, __, mid, reason, ___: self._publisher.answered(mid, reason)
        return client

    def _change_protocol(self) -> None:
        """Start over with the other version; what the broker has not acknowledged is sent again."""
        self.protocol = self._choice.protocol
        self._publisher.start_over()
        self._client = self._make_client()

    def _connected(self, flags: Any, reason: Any, limits: Any) -> None:
        self._answered = True
        if reason.is_failure:
            self._refused(str(reason))
            return
        if self._choice.accepted() and self.protocol != self._config.protocol:
            log.warning("mqtt_fallback", reason="the broker does not speak MQTT 5, 3.1.1 is used from now on")
        self.epoch += 1
        self._dropping = False
        self._publisher.limits = BrokerLimits.of(limits)
        self._subscriptions.session_present(present=flags.session_present)
        self._condition.connected()
        where = {"host": self._config.host, "port": self._config.port, "protocol": self.protocol}
        log.info("mqtt_connected", **where, session_present=flags.session_present)
        self._online.set()

    def _refused(self, reason: str) -> None:
        words = reason, connection.refusal_remedy(reason)
        if reason == connection.UNSUPPORTED and self._config.protocol == "5":
            if self._choice.refused():
                return
            words = NEITHER
        self._condition.complain("mqtt_refused", *words)

    def _disconnected(self, reason: str) -> None:
        unwanted = self._online.is_set() and not self._dropping and not self._closing.is_set()
        if unwanted and self._condition.disconnected(reason):
            self._backoff.record_takeover()

    def _subscribed(self, mid: int, reasons: Any) -> None:
        for pattern, reason in self._subscriptions.answered(mid, reasons):
            remedy = "check the broker's access rules"
            log.error("mqtt_subscription_refused", filter=pattern, reason=reason, remedy=remedy)


class WakeupPipe:
    """Makes a selector return, from any thread; any number of calls cost one wake-up."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._set = False

    def fileno(self) -> int:
        """File descriptor for a selector."""
        return self._receiver.fileno()

    def wake(self) -> None:
        """Call after the work has been put where the network thread looks for it."""
        if self._set:
            return
        self._set = True
        # A full buffer has woken it already; a closed socket has nobody to wake.
        with contextlib.suppress(OSError):
            self._sender.send(b"\0")

    def clear(self) -> None:
        """Discard pending wake-ups; call it before looking for work."""
        with contextlib.suppress(OSError):
            self._receiver.recv(4096)
        self._set = False

    def close(self) -> None:
        """Give the sockets back; `wake` does nothing from now on."""
        self._receiver.close()
        self._sender.close()
