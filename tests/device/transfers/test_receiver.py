"""Transfers that come in by chunks: bounded, resumed, and nothing taken that was not announced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.clock import VirtualClock
from edged.config import Config
from edged.device.learning.worker import TrainingWorker
from edged.device.transfers.installer import TransferInstaller
from edged.device.transfers.receiver import MAX_CHUNK, TransferReceiver
from edged.errors import ConfigError, EdgedError, RefusedError
from edged.mqtt import weight_encoding
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.client.session import Session
from edged.mqtt.topics import Topics
from edged.storage.journal.transfers import (
    Transfer,
    TransferPurpose,
    TransferStaging,
    announced,
    read_transfer,
)
from tests.running_device import wait_until

BLOB = bytes(range(256)) * 4
LIMIT = 4096


class Acknowledgements(Session):
    """Notes what a session would acknowledge; it opens no connection."""

    def __init__(self) -> None:
        self.acknowledged: list[ReceivedMessage] = []

    def ack(self, deliveries: Sequence[ReceivedMessage]) -> None:
        self.acknowledged.extend(deliveries)


class Complete(TransferInstaller):
    """Notes the transfers that are complete, and installs none."""

    def __init__(self) -> None:
        self.complete: list[Transfer] = []

    def install(self, transfer: Transfer) -> None:
        self.complete.append(transfer)


class Idle(TrainingWorker):
    """Never trains, so that what waits for the end of a run is done at once."""

    def __init__(self) -> None:
        pass

    def between_runs(self, action: Callable[[], None]) -> None:
        action()


class Dock:
    """What takes chunks, and what came of them."""

    def __init__(self, state: Path, expire: float = 60.0) -> None:
        self.clock = VirtualClock(0.0)
        self.staging = TransferStaging(state, max_bytes=LIMIT, expire=expire, clock=self.clock)
        self.session, self.installer = Acknowledgements(), Complete()
        self.acknowledged, self.complete = self.session.acknowledged, self.installer.complete
        config = Config.model_validate({"device": {"id": "rig"}, "stream": {"features": 1, "classes": 2}})
        self.incoming = TransferReceiver(
            config, self.session, Topics("edged/rig"), self.staging, self.installer, Idle()
        )

    def send(self, *chunks: ReceivedMessage) -> None:
        before = len(self.acknowledged)
        for chunk in chunks:
            self.incoming.receive(chunk)
        wait_until(lambda: len(self.acknowledged) == before + len(chunks))


def transfer(name: str = "t1", blob: bytes = BLOB, size: int = 300) -> Transfer:
    manifest = weight_encoding.manifest(blob, weight_encoding.split(blob, size)).to_json()
    return announced(name, manifest, TransferPurpose(downgrade=True), LIMIT)


def chunk(topic: str, payload: bytes, *, retain: bool = False) -> ReceivedMessage:
    return ReceivedMessage(topic, payload, 0, 0, False, retain, 0, 0.0)


def chunks(name: str = "t1", blob: bytes = BLOB, size: int = 300) -> list[ReceivedMessage]:
    parts = weight_encoding.split(blob, size)
    return [chunk(f"edged/rig/weights/in/{name}/{n}", part) for n, part in enumerate(parts)]


def test_a_transfer_is_complete_once_when_its_last_chunk_has_come(tmp_path: Path) -> None:
    dock = Dock(tmp_path)
    assert dock.incoming.open(transfer()) == [0, 1, 2, 3]
    parts = chunks()
    dock.send(parts[3], parts[1], parts[0])
    assert dock.incoming.open(transfer()) == [2]
    assert dock.complete == []
    dock.send(parts[2], parts[2], parts[0])
    assert [t.name for t in dock.complete] == ["t1"]
    transfer().check(dock.staging.content(transfer()))
    assert read_transfer(dock.staging.folder / "t1")[1] == BLOB
    dock.staging.discard(transfer())
    assert list((tmp_path / "incoming").iterdir()) == []
    dock.incoming.stop()


def test_what_was_not_announced_is_dropped_and_acknowledged(tmp_path: Path) -> None:
    dock = Dock(tmp_path)
    dock.send(chunks()[0])
    dock.incoming.open(transfer())
    parts = chunks()
    root = "edged/rig/weights/in"
    dock.send(
        chunk(parts[0].topic, parts[0].payload, retain=True),
        chunk(parts[0].topic, parts[1].payload),
        chunk(f"{root}/t2/0", parts[0].payload),
        chunk(f"{root}/t1/99", parts[0].payload),
        chunk(f"{root}/t1/-1", parts[0].payload),
        chunk(f"{root}/t1/{'1' * 9000}", parts[0].payload),
        chunk(f"{root}/t1/x", parts[0].payload),
        chunk(f"{root}/t1/0", bytes(MAX_CHUNK + 1)),
    )
    assert dock.incoming.dropped == 9
    assert dock.incoming.open(transfer()) == [0, 1, 2, 3]
    dock.incoming.stop()


def test_a_new_process_takes_the_transfer_up_and_finds_a_torn_chunk(tmp_path: Path) -> None:
    dock = Dock(tmp_path)
    dock.incoming.open(transfer())
    dock.send(*chunks())
    dock.incoming.stop()
    with (tmp_path / "incoming" / "t1" / "content").open("r+b") as content:
        content.seek(300)
        content.write(b"torn")
    again = Dock(tmp_path)
    again.incoming.resume()
    assert again.complete == []
    assert again.incoming.open(transfer()) == [1]
    again.send(chunks()[1])
    again.incoming.stop()
    last = Dock(tmp_path)
    last.incoming.resume()
    assert [t.purpose for t in again.complete + last.complete] == [TransferPurpose(downgrade=True)] * 2
    transfer().check(last.staging.content(transfer()))


def test_one_at_a_time_until_it_has_expired(tmp_path: Path) -> None:
    dock = Dock(tmp_path)
    dock.incoming.open(transfer())
    with pytest.raises(RefusedError, match="another transfer is under way"):
        dock.incoming.open(transfer("t2"))
    dock.clock.advance_to(61.0)
    assert dock.incoming.open(transfer("t2")) == [0, 1, 2, 3]
    assert [path.name for path in (tmp_path / "incoming").iterdir()] == ["t2"]
    other = transfer("t2", bytes(1000))
    assert len(dock.incoming.open(other)) == 4, "the sender has changed its mind"


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("../t", {}, ConfigError),
        ("t" * 65, {}, ConfigError),
        ("", {}, ConfigError),
        (7, {}, ConfigError),
        ("t", {"chunks": []}, ConfigError),
        ("t", {"chunks": 3}, ConfigError),
        ("t", {"chunks": [{"bytes": True, "sha256": "0" * 64}]}, ConfigError),
        ("t", {"sha256": "no"}, ConfigError),
        ("t", {"bytes": 5}, ConfigError),
        ("t", {"bytes": LIMIT + 1, "chunks": [{"bytes": LIMIT + 1, "sha256": "0" * 64}]}, RefusedError),
    ],
)
def test_what_cannot_be_a_transfer_is_refused(name: Any, change: Any, problem: type[EdgedError]) -> None:
    with pytest.raises(problem):
        announced(name, {**transfer().manifest.to_json(), **change}, TransferPurpose(), LIMIT)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["chunks", "bytes", "sha256"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=200)
@given(JSON, JSON)
def test_any_json_is_refused_with_a_clear_error(name: Any, manifest: Any) -> None:
    with pytest.raises(EdgedError):
        announced(name, manifest, TransferPurpose(), LIMIT)


def test_a_whole_that_is_not_the_sum_of_its_chunks_is_told(tmp_path: Path) -> None:
    dock = Dock(tmp_path)
    wrong = announced("t1", {**transfer().manifest.to_json(), "sha256": "0" * 64}, TransferPurpose(), LIMIT)
    dock.incoming.open(wrong)
    dock.send(*chunks())
    with pytest.raises(ConfigError, match="together"):
        wrong.check(dock.staging.content(wrong))
    dock.incoming.stop()
