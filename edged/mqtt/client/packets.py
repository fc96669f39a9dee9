"""The hot path of the connection: PUBLISH and PUBACK packets, read and written in large pieces.

paho reads a packet in three or four system calls and writes each PUBACK in one; at MQTT 5 it also
builds a property table for every message. `PacketSocket` stands between paho and its socket: it reads 64 KiB
at a time, takes complete PUBLISH packets of QoS 0 and 1 out of the stream itself, hands every other
packet to paho, and gathers what is to be sent. That costs about 2 µs a message where
paho takes 30 (3.1.1) or 45 (MQTT 5).

Packet layout: MQTT 5.0 (OASIS, 2019) sections 2.1, 3.3 and 3.4; MQTT 3.1.1 sections 2.2, 3.3, 3.4.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable

from paho.mqtt import MQTTException
from paho.mqtt.packettypes import PacketTypes

from edged.errors import BrokerError
from edged.mqtt.client.message import MessageProperties, OutgoingMessage, ReceivedMessage, paho_properties

CHUNK = 64 * 1024
ROOM = 256 * 1024
CLOSING_SECONDS = 1.0
_NO_MQTT = "is this the port of an MQTT broker?"


class PacketSocket:
    """A connected socket as paho sees one, with the PUBLISH traffic taken out.

    Only the network thread uses it. What is different under TLS is in `tls.py`.
    """

    would_block: tuple[type[OSError], ...] = (BlockingIOError,)
    """What the socket raises when there is nothing to read, or no room to write."""

    def __init__(self, sock: socket.socket, *, v5: bool) -> None:
        self._sock = sock
        self._v5 = v5
        self._data = b""
        self._at = 0
        self._parts: list[bytes] = []
        self._missing = 0
        self._granted = 0
        self.lost = False
        """Whether the peer has closed or broken the connection."""
        self.problem: OSError | None = None
        """What TLS says of the end of the connection: by TLS 1.3 a client hears only here of its refusal."""
        self._out = bytearray()

    # What paho calls.

    def recv(self, size: int) -> bytes:
        """Bytes of the packet that was offered; `b""` once the connection is lost."""
        if self._granted == 0:
            if self.lost:
                return b""
            raise BlockingIOError
        piece = self._data[self._at : self._at + min(size, self._granted)]
        self._at += len(piece)
        self._granted -= len(piece)
        return piece

    def send(self, data: bytes | bytearray) -> int:
        """Buffer all of `data`; `flush` writes it to the network."""
        self._out += data
        return len(data)

    def close(self) -> None:
        """Send what is left (a DISCONNECT, last messages) if the peer still takes it, and close."""
        if self._out and not self.lost:
            with contextlib.suppress(OSError):
                self._sock.settimeout(CLOSING_SECONDS)
                self._sock.sendall(self._out)
        self._out.clear()
        self._sock.close()

    def fileno(self) -> int:
        """File descriptor for a selector."""
        return self._sock.fileno()

    def setblocking(self, flag: bool) -> None:
        """Set the blocking mode of the socket."""
        self._sock.setblocking(flag)

    # What the session calls.

    @property
    def unsent(self) -> int:
        """Bytes that wait to be written to the network."""
        return len(self._out)

    @property
    def room(self) -> bool:
        """Whether more messages should be put here now."""
        return len(self._out) < ROOM

    @property
    def holds_decrypted(self) -> bool:
        """Whether TLS has bytes for us that a selector cannot see."""
        return False

    def fill(self) -> None:
        """Read once from the network, without blocking."""
        try:
            chunk = self._sock.recv(CHUNK)
        except self.would_block:
            return
        except OSError as problem:
            self.record(problem)
            chunk = b""
        if not chunk:
            self.lost = True
            return
        self._parts.append(chunk)
        self._missing -= len(chunk)
        # A large message comes in many pieces: they are joined once, when it is whole.
        if self._missing <= 0:
            self._data = b"".join((self._data[self._at :], *self._parts))
            self._at = self._missing = 0
            self._parts.clear()

    def flush(self) -> None:
        """Write what the network takes now; nothing once it is lost, for then only reading says why."""
        if not self._out or self.lost:
            return
        try:
            sent = self._sock.send(self._out)
        except self.would_block:
            return
        except OSError as problem:
            self.record(problem)
            self.lost = True
            return
        del self._out[:sent]

    def record(self, problem: OSError) -> None:
        """Record why the connection ended, if `problem` tells; without TLS it does not."""

    def read(self, epoch: int, received: float) -> list[ReceivedMessage]:
        """Read all complete PUBLISH packets up to the next packet of another kind.

        Raises BrokerError when the bytes are no MQTT.
        """
        found: list[ReceivedMessage] = []
        try:
            while (frame := self._frame()) is not None:
                first, start, stop = frame
                if first & 0xF0 != 0x30 or first & 0x06 == 0x04:
                    break
                found.append(self._delivery(first, start, stop, epoch, received))
                self._at = stop
        except (IndexError, UnicodeDecodeError, MQTTException) as problem:
            raise BrokerError("the broker sent a malformed packet", remedy=_NO_MQTT) from problem
        return found

    def offer(self) -> bool:
        """Whether a complete packet of another kind is next; it may then be read with `recv`."""
        frame = self._frame()
        if frame is None:
            return False
        self._granted = frame[2] - self._at
        return True

    def ack(self, mids: Iterable[int]) -> None:
        """Acknowledge messages by packet id, in the order given."""
        self._out += b"".join([b"\x40\x02" + mid.to_bytes(2, "big") for mid in mids])

    def publish(self, message: OutgoingMessage) -> None:
        """Buffer a QoS 0 message."""
        self._out += encode_publish(message, v5=self._v5)

    def _frame(self) -> tuple[int, int, int] | None:
        """First byte, start and stop of the body of the next packet, or None until it is whole."""
        data, at = self._data, self._at
        end = len(data)
        if end - at < 2 or self._parts:
            return None
        size, start = data[at + 1], at + 2
        if size > 127:
            size, start = _length(data, at + 1)
            if size < 0:
                return None
        if start + size > end:
            self._missing = start + size - end
            return None
        return data[at], start, start + size

    def _delivery(self, first: int, start: int, stop: int, epoch: int, received: float) -> ReceivedMessage:
        data = self._data
        at = start + 2 + (data[start] << 8) + data[start + 1]
        topic = data[start + 2 : at].decode()
        qos = first >> 1 & 1
        mid = 0
        if qos:
            mid = (data[at] << 8) + data[at + 1]
            at += 2
        properties = None
        if self._v5:
            if data[at]:
                properties, at = _properties(data, at, stop)
            else:
                at += 1
        if at > stop:
            raise IndexError
        dup, retain = first & 8 != 0, first & 1 != 0
        return ReceivedMessage(topic, data[at:stop], mid, qos, dup, retain, epoch, received, properties)


def _length(data: bytes, at: int) -> tuple[int, int]:
    """A variable byte integer and where it ends; -1 while it is incomplete."""
    value = 0
    for count in range(4):
        if at + count >= len(data):
            return -1, at
        byte = data[at + count]
        value |= (byte & 127) << 7 * count
        if byte < 128:
            return value, at + count + 1
    raise BrokerError("the broker sent a malformed packet length", remedy=_NO_MQTT)


def _properties(data: bytes, at: int, stop: int) -> tuple[MessageProperties, int]:
    properties = paho_properties(PacketTypes.PUBLISH)
    _, size = properties.unpack(data[at:stop])  # type: ignore[no-untyped-call]
    return MessageProperties.from_paho(properties), at + size


def encode_publish(message: OutgoingMessage, *, v5: bool) -> bytes:
    r"""A QoS 0 PUBLISH packet.

    >>> encode_publish(OutgoingMessage("a", b"hi"), v5=False)
    b'0\x05\x00\x01ahi'
    """
    topic = message.topic.encode()
    properties = b""
    if v5:
        properties = b"\x00" if message.properties is None else message.properties.pack()
    size = 2 + len(topic) + len(properties) + len(message.payload)
    head = bytes((0x31 if message.retain else 0x30,)) + _encode_length(size)
    return b"".join((head, len(topic).to_bytes(2, "big"), topic, properties, message.payload))


def _encode_length(size: int) -> bytes:
    encoded = bytearray()
    while size > 127:
        encoded.append(size & 127 | 128)
        size >>= 7
    encoded.append(size)
    return bytes(encoded)
