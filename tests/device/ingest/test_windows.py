"""Readings that become windows: durable one by one, cut once, whatever fails or restarts in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.device.dock import CLASSIFY, Dock, again, delivery
from tests.storage.stream import find, stored_inputs

if TYPE_CHECKING:
    from edged.mqtt.client.message import ReceivedMessage

WINDOWS: dict[str, Any] = {**CLASSIFY, "id": "id", "window": {"size": 4, "stride": 2}}


@pytest.fixture
def dock(tmp_path: Path) -> Iterator[Dock]:
    with closing(Dock(tmp_path, WINDOWS)) as made:
        yield made


def readings(first: int, last: int, key: str = "m1", **fields: Any) -> list[ReceivedMessage]:
    """Reading `mid` is `[mid, 0.5]` at second `mid`."""
    return [
        delivery(mid, f"s/{key}", ts=float(mid), id=f"r{mid}", **fields) for mid in range(first, last + 1)
    ]


def starts(dock: Dock) -> list[float]:
    """The first reading of every window that was handed over for prediction, in that order."""
    return [float(x) for batch in dock.batches for x in batch.x[:, 0]]


def restart(dock: Dock) -> None:
    dock.close()
    dock.open()


def test_a_window_is_a_sample_and_the_readings_before_it_are_durable(dock: Dock) -> None:
    dock.work(readings(1, 3))
    assert (dock.stored(), dock.batches, len(dock.acknowledged)) == (0, [], 3)
    assert [row.x.tolist() for row in dock.log.open_windows().rows.values()] == [[1, 0.5], [2, 0.5], [3, 0.5]]
    dock.work([delivery(4, "s/m1", ts=4.0, id="r4", label="worn")])
    (batch,) = dock.batches
    assert batch.x.tolist() == [[1, 0.5, 2, 0.5, 3, 0.5, 4, 0.5]]
    assert (batch.keys, batch.ts.tolist(), batch.labels, batch.ids) == (["m1"], [4.0], [1.0], ["r4"])
    assert find(dock.log, id="r4") == find(dock.log, key="m1", ts=4.2) == 1
    assert (dock.stored(), dock.committed, len(dock.acknowledged)) == (1, 1, 4)
    assert len(dock.log.open_windows().rows) == 2, "what the next window has in common with it"


@pytest.mark.parametrize(("longest", "windows"), [("5s", [1.0, 3.0]), ("20s", [1.0, 3.0, 5.0, 7.0])])
def test_a_break_ends_a_window_where_it_is_longer_than_configured(
    tmp_path: Path, longest: str, windows: list[float]
) -> None:
    section = {**WINDOWS, "window": {"size": 4, "stride": 2, "max_gap": longest}}
    with closing(Dock(tmp_path, section)) as dock:
        dock.work(readings(1, 7))
        dock.work([delivery(mid, "s/m1", ts=mid + 10.0, id=f"r{mid}") for mid in (8, 9, 10)])
        assert starts(dock) == windows


@pytest.mark.parametrize(("which", "label"), [("last", 1.0), ("majority", 0.0)])
def test_a_window_has_the_label_that_is_configured(tmp_path: Path, which: str, label: float) -> None:
    with closing(Dock(tmp_path, {**WINDOWS, "window": {"size": 4, "label": which}})) as dock:
        dock.work(readings(1, 3, label="ok") + readings(4, 4, label="worn"))
        assert [batch.labels for batch in dock.batches] == [[label]]


@pytest.mark.parametrize(("most", "windows"), [(1, 0), (2, 2)])
def test_only_so_many_keys_have_open_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, windows: int
) -> None:
    monkeypatch.setattr("edged.config.stream.MAX_WINDOW_KEYS", most)
    with closing(Dock(tmp_path, {**WINDOWS, "window": {"size": 4}})) as dock:
        for mid in range(1, 9):
            dock.work(readings(mid, mid, key=f"m{mid % 2}"))
        assert len(starts(dock)) == windows


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_a_restart_after_any_commit_loses_and_doubles_no_window(dock: Dock, size: int) -> None:
    messages = readings(1, 20)
    for first in range(0, 20, size):
        part = messages[first : first + size]
        dock.work(part)
        restart(dock)
        dock.work([again(message) for message in part])  # the broker did not get the acknowledgements
    assert starts(dock) == dock.inputs() == [1, 3, 5, 7, 9, 11, 13, 15, 17]
    assert len(dock.acknowledged) == 40
    assert dock.ingestor.windowing is not None
    assert dock.ingestor.windowing.late == 0, "what came again was recognised"


@pytest.mark.parametrize("kind", ["failing", "late"])
def test_commits_that_fail_or_only_seem_to_lose_and_double_no_window(dock: Dock, kind: str) -> None:
    setattr(dock.log, kind, frozenset({1, 2, 4, 7}))
    for first in range(1, 20, 3):
        dock.work(readings(first, first + 2))
    while dock.ingestor.waiting:
        dock.committer.commit()
    restart(dock)
    dock.work(readings(22, 23))
    assert starts(dock) == dock.inputs() == [*range(1, 20, 2)]


def test_what_is_given_up_and_delivered_again_is_cut_as_if_it_had_come_once(dock: Dock) -> None:
    first, second = readings(1, 3), readings(4, 9)
    dock.work(first)
    hand_over, dock.on_batch = dock.on_batch, _fail
    for message in second:
        dock.ingestor.receive(message)
    dock.ingestor._turn(woken=True)  # noqa: SLF001  one turn of the thread, without its waits
    assert (dock.redeliveries, dock.ingestor.waiting) == (1, 0)
    dock.on_batch = hand_over
    dock.work([again(message) for message in second])
    assert starts(dock) == dock.inputs() == [1, 3, 5]


def _fail(*_: object) -> None:
    raise RuntimeError("nobody foresaw this")


def test_readings_without_a_time_come_one_after_the_other(tmp_path: Path) -> None:
    stream = {**WINDOWS, "window": {"size": 3, "rate": 10, "stride": 3}}
    with closing(Dock(tmp_path, stream)) as dock:
        dock.clock.advance_to(1010.0)
        messages = [delivery(mid) for mid in range(1, 8)]
        start = dock.clock.monotonic()
        for i, message in enumerate(messages):
            message.received = start - 0.7 + i / 10
        dock.work(messages)
        assert [b.x[:, ::2].tolist() for b in dock.batches] == [[[1, 2, 3], [4, 5, 6]]]
        assert dock.batches[0].ts == pytest.approx([1009.5, 1009.8])


def test_sensors_are_watched_by_their_readings(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, WINDOWS)) as dock:
        dock.rules = type(dock.rules)(stuck_after=12)
        restart(dock)
        dock.work(readings(1, 30))
        dock.work([_still(mid) for mid in range(31, 60)])
    assert [(name, fields["features"]) for name, fields in dock.notices] == [("sensor_stuck", [0])]


def _still(mid: int) -> ReceivedMessage:
    return delivery(mid, "s/m1", ts=float(mid), payload=b'{"x": [30, 0.5], "ts": %d}' % mid)


def test_a_stream_of_other_windows_does_not_open_the_log(dock: Dock, tmp_path: Path) -> None:
    dock.work(readings(1, 6))
    dock.close()
    same_width = {**WINDOWS, "features": 4, "window": {"size": 2}}
    with pytest.raises(Exception, match="window '4'"):
        Dock(tmp_path, same_width)
    dock.open()


def test_many_keys_at_once(dock: Dock) -> None:
    keys = [f"k{i}" for i in range(20)]
    dock.work([m for mid in range(1, 9) for key in keys for m in readings(mid, mid, key)])
    assert dock.stored() == 60
    found = stored_inputs(dock.path, dock.schema.width).reshape(-1, 4, 2)[:, :, 0]
    assert np.unique(found, axis=0).tolist() == [[1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 8]]


def erased(dock: Dock, **what: bool) -> Sequence[Any]:
    dock.log.erase(**what)
    opened = dock.log.open_windows()
    return [*(row.label for row in opened.rows.values()), *(h.label for h in opened.heads.values())]


def test_open_windows_are_erased_with_samples_and_their_labels_with_labels(dock: Dock) -> None:
    dock.work(readings(1, 2, label="worn"))
    assert erased(dock, labels=True) == [None, None, None]
    assert erased(dock, samples=True) == []


def test_open_windows_grow_too_old_like_samples(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, WINDOWS)) as dock:
        dock.max_age = 100.0
        restart(dock)
        dock.clock.advance_to(1000.0)
        dock.work([*readings(920, 921, "old"), *readings(990, 991, "new")])
        assert dock.log.evict(1010.0) == 0
        assert set(dock.log.open_windows().heads) == {"old", "new"}
        dock.log.evict(1030.0)
        opened = dock.log.open_windows()
        assert (set(opened.heads), {row.key for row in opened.rows.values()}) == ({"new"}, {"new"})
