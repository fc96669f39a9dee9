"""Messages that hold several readings, or none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.domain.stream.admission import AdmissionRules
from tests.device.dock import Dock, again, delivery

if TYPE_CHECKING:
    from edged.mqtt.client.message import ReceivedMessage

SENML: dict[str, Any] = {
    "codec": "senml",
    "features": ["a", "b"],
    "classes": 2,
    "label": "l",
    "key": "topic:1",
}
ROWS: dict[str, Any] = {
    "codec": "float32",
    "features": 2,
    "key": "topic:1",
    "window": {"size": 4, "stride": 2},
}


@pytest.fixture
def dock(tmp_path: Path) -> Iterator[Dock]:
    with closing(Dock(tmp_path, SENML)) as made:
        yield made


def pack(mid: int, times: range, *, base: float = 0.0) -> ReceivedMessage:
    """Reading `[t, mid]` at each second `t`; with times relative to now unless there is a base time."""
    records = [{"n": n, "v": v, "t": t} for t in times for n, v in (("a", t), ("b", mid), ("l", t % 2))]
    return delivery(mid, payload=json.dumps([{"bn": "", "bt": base, **records[0]}, *records[1:]]).encode())


def test_the_readings_of_a_message_are_samples_and_it_is_acknowledged_once(dock: Dock) -> None:
    first, second = pack(1, range(3), base=1e9), pack(2, range(3, 5), base=1e9)
    dock.work([first, second])
    (batch,) = dock.batches
    assert batch.x.tolist() == [[0, 1], [1, 1], [2, 1], [3, 2], [4, 2]]
    assert batch.ts.tolist() == [1e9 + t for t in range(5)]
    assert batch.labels == [0.0, 1.0, 0.0, 1.0, 0.0]
    assert (dock.acknowledged, dock.stored(), dock.committed) == ([first, second], 5, 5)


@pytest.mark.parametrize("restart", [False, True])
def test_a_redelivery_of_it_is_recognised(dock: Dock, restart: bool) -> None:
    messages = [pack(mid, range(10 * mid, 10 * mid + 9), base=1e9) for mid in range(1, 200)]
    dock.work(messages)
    if restart:
        dock.close()
        dock.open()
    dock.work([again(message) for message in messages])
    assert (dock.stored(), dock.committer.redelivered) == (199 * 9, 199)


def test_a_commit_that_fails_loses_and_doubles_none(dock: Dock) -> None:
    dock.log.failing = frozenset({1})
    dock.work([pack(1, range(3), base=1e9)])
    assert (dock.stored(), dock.acknowledged) == (0, [])
    dock.work([pack(2, range(3, 5), base=1e9)])
    assert (dock.inputs(), len(dock.acknowledged)) == ([0, 1, 2, 3, 4], 2)


def test_one_bad_reading_is_one_bad_message(dock: Dock) -> None:
    records = [{"n": "a", "v": 1, "t": 5}, {"n": "b", "v": 1, "t": 5}, {"n": "a", "v": 1, "t": 6}]
    dock.work([delivery(1, payload=json.dumps(records).encode())])
    assert ([r.reason for r in dock.rejected], dock.stored()) == (["missing_field"], 0)


def test_a_flood_is_counted_by_readings(tmp_path: Path) -> None:
    dock = Dock(tmp_path, SENML)
    with closing(dock):
        dock.rules = AdmissionRules(key_rate=0.001, key_burst=4)
        dock.close()
        dock.open()
        dock.work([pack(1, range(6), base=1e9), pack(2, range(6, 8), base=1e9)])
        assert (dock.stored(), dock.ingestor.admission.flooded, len(dock.acknowledged)) == (4, 4, 2)


def test_a_message_without_readings_is_acknowledged(dock: Dock) -> None:
    dock.work([delivery(1, payload=b"[]")])
    assert (len(dock.acknowledged), dock.stored(), dock.rejected) == (1, 0, [])


@pytest.mark.parametrize("restart", [False, True])
def test_rows_of_raw_numbers_make_windows(tmp_path: Path, restart: bool) -> None:
    with closing(Dock(tmp_path, ROWS)) as dock:
        rows = np.arange(12, dtype="<f4")
        message = delivery(1, payload=rows[:6].tobytes())
        dock.work([message])
        if restart:
            dock.close()
            dock.open()
        dock.work([again(message), delivery(2, payload=rows[6:].tobytes())])
        assert [x.tolist() for batch in dock.batches for x in batch.x] == [
            rows[:8].tolist(), rows[4:].tolist()
        ]  # fmt: skip
        assert (dock.committer.redelivered, len(dock.acknowledged)) == (1, 3)
