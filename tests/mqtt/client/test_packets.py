"""The wire against real socket pairs, in pieces of any size."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.errors import BrokerError
from edged.mqtt.client.message import MessageProperties, OutgoingMessage, ReceivedMessage
from edged.mqtt.client.packets import PacketSocket, encode_publish

TOPIC = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
PACKETS = st.lists(
    st.tuples(
        TOPIC, st.binary(max_size=400), st.integers(0, 1), st.booleans(), st.integers(1, 65535), st.booleans()
    )
)
PINGRESP = b"\xd0\x00"


def packet(topic: str, payload: bytes, qos: int, retain: bool, mid: int, dup: bool, *, v5: bool) -> bytes:
    """A PUBLISH packet, written down from the specification."""
    name = topic.encode()
    body = len(name).to_bytes(2, "big") + name + (mid.to_bytes(2, "big") if qos else b"")
    body += (b"\0" if v5 else b"") + payload
    size, length = len(body), bytearray()
    while True:
        size, digit = divmod(size, 128)
        length.append(digit | (128 if size else 0))
        if not size:
            break
    return bytes([0x30 | dup << 3 | qos << 1 | retain]) + bytes(length) + body


class Peer:
    """The broker's end of a wire."""

    def __init__(self, *, v5: bool) -> None:
        ours, self.sock = socket.socketpair()
        ours.setblocking(False)
        self.wire = PacketSocket(ours, v5=v5)

    def send(self, data: bytes) -> list[ReceivedMessage]:
        self.sock.sendall(data)
        self.wire.fill()
        return self.wire.read(1, 0.5)

    def close(self) -> None:
        self.wire.close()
        self.sock.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer(v5=True)
    yield peer
    peer.close()


@given(PACKETS, st.booleans(), st.lists(st.integers(1, 50), min_size=1))
def test_packets_cut_anywhere_come_out_whole_and_in_order(
    packets: list[tuple[str, bytes, int, bool, int, bool]], v5: bool, cuts: list[int]
) -> None:
    stream = b"".join(packet(*each, v5=v5) for each in packets)
    peer = Peer(v5=v5)
    found: list[ReceivedMessage] = []
    at = turn = 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        found += peer.send(stream[at : at + step])
        at, turn = at + step, turn + 1
    peer.close()
    expected = [
        ReceivedMessage(topic, payload, mid if qos else 0, qos, dup, retain, 1, 0.5)
        for topic, payload, qos, retain, mid, dup in packets
    ]
    assert found == expected


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_packets_or_a_clear_error(data: bytes, v5: bool) -> None:
    peer = Peer(v5=v5)
    with contextlib.suppress(BrokerError):
        for delivery in peer.send(data):
            assert isinstance(delivery.payload, bytes)
        peer.wire.offer()
    peer.close()


def test_other_packets_go_to_paho_in_their_place(peer: Peer) -> None:
    before = packet("a", b"1", 1, retain=False, mid=1, dup=False, v5=True)
    after = packet("a", b"2", 1, retain=False, mid=2, dup=False, v5=True)
    assert [each.payload for each in peer.send(before + PINGRESP + after)] == [b"1"]
    assert peer.wire.offer()
    assert peer.wire.recv(1) + peer.wire.recv(100) == PINGRESP
    with pytest.raises(BlockingIOError):
        peer.wire.recv(1)
    assert [each.payload for each in peer.wire.read(1, 0.0)] == [b"2"]


def test_a_packet_that_is_not_whole_is_not_offered(peer: Peer) -> None:
    assert peer.send(PINGRESP[:1]) == []
    assert not peer.wire.offer()
    assert peer.send(PINGRESP[1:]) == []
    assert peer.wire.offer()


def test_qos_2_is_left_to_paho(peer: Peer) -> None:
    assert peer.send(packet("a", b"1", 2, retain=False, mid=1, dup=False, v5=True)) == []
    assert peer.wire.offer()


def test_a_message_of_megabytes(peer: Peer) -> None:
    payload = bytes(range(256)) * 20_000
    data = packet("big", payload, 1, retain=False, mid=9, dup=False, v5=True)
    found: list[ReceivedMessage] = []
    for at in range(0, len(data), 50_000):
        found += peer.send(data[at : at + 50_000])
    assert [each.payload for each in found] == [payload]


def test_properties_are_read_where_there_are_any(peer: Peer) -> None:
    properties = MessageProperties("answer/here", b"\x00\x01", 60)
    body = b"\0\1a" + properties.pack() + b"{}"
    [delivery] = peer.send(bytes([0x30, len(body)]) + body)
    assert delivery.properties == properties
    assert delivery.response_topic == "answer/here"
    assert delivery.correlation == b"\x00\x01"
    assert delivery.payload == b"{}"


def test_without_properties_nothing_is_made_up(peer: Peer) -> None:
    [delivery] = peer.send(packet("a", b"", 0, retain=True, mid=0, dup=False, v5=True))
    assert (delivery.properties, delivery.response_topic, delivery.correlation) == (None, None, None)


def test_the_end_of_the_connection_is_noticed_after_what_came_before(peer: Peer) -> None:
    data = packet("a", b"1", 0, retain=False, mid=0, dup=False, v5=True)
    assert len(peer.send(data)) == 1
    peer.sock.close()
    peer.wire.fill()
    assert peer.wire.lost
    assert peer.wire.recv(1) == b""


@given(TOPIC, st.binary(max_size=300), st.booleans(), st.booleans())
def test_what_we_publish_reads_back(topic: str, payload: bytes, retain: bool, v5: bool) -> None:
    encoded = encode_publish(OutgoingMessage(topic, payload, retain=retain), v5=v5)
    assert encoded == packet(topic, payload, 0, retain, 0, dup=False, v5=v5)


def test_acknowledgements_leave_in_one_piece(peer: Peer) -> None:
    peer.wire.ack([1, 258, 65535])
    assert peer.wire.unsent == 12
    peer.wire.flush()
    assert peer.wire.unsent == 0
    assert peer.sock.recv(100) == b"\x40\x02\x00\x01\x40\x02\x01\x02\x40\x02\xff\xff"


def test_a_peer_that_does_not_read_stops_us_from_taking_more(peer: Peer) -> None:
    message = OutgoingMessage("a", bytes(10_000))
    count = 0
    while peer.wire.room:
        peer.wire.publish(message)
        peer.wire.flush()
        count += 1
        assert count < 10_000
    received = 0
    while peer.wire.unsent:
        received += len(peer.sock.recv(1 << 20))
        peer.wire.flush()
    assert peer.wire.room
