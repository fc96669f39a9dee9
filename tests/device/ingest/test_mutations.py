"""Payloads that nobody should send, by the hundred thousand, on the way that every message takes."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.clock import VirtualClock
from edged.config import StorageConfig, StreamConfig
from edged.device.ingest import Ingestor
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.codecs import label_codec, sample_codec
from edged.mqtt.topics import matches
from edged.storage.samples.log import SampleLog
from tests.mutations import Mutations

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP = 500
SLOWEST = 200e-6  # seconds of one payload, 99 of 100
GROWTH = 8.0  # MB, after the first tenth

POSITIONAL: dict[str, Any] = {
    "features": 4, "classes": ["ok", "worn"], "label": "label", "ts": "ts", "id": "id", "key": "key",
    "label_topic": "labels/#",
}  # fmt: skip
NAMED: dict[str, Any] = {
    "features": ["temp", "vib.x", "vib.1", "a.0.b"], "targets": 2, "label": "out.y", "ts": "ts",
    "label_topic": "labels/#", "join": "key_time",
}  # fmt: skip
GOOD: dict[str, list[dict[str, object]]] = {
    "positional": [
        {"x": [1.5, -2, 3e-5, 4], "label": "ok", "ts": 1.7e9, "id": "a-1", "key": "m1"},
        {"x": [0, 0, 0, 0], "ts": "2024-02-29T12:00:00.5+02:00", "key": 7},
        {"id": "a-1", "label": "worn"},
    ],
    "named": [
        {
            "temp": 20.5,
            "vib": {"x": 1, "1": 2},
            "a": [{"b": 3}],
            "out": {"y": [1, 2]},
            "ts": 1_700_000_000_123,
        },
        {"temp": 20.5, "vib.x": 1, "vib.1": 2.0, "a.0.b": -3},
        {"key": "s/m1", "ts": 1.7e9, "y": [1.0, 2.0]},
    ],
}


class Way:
    """The real way from deliveries to the sample log, timed."""

    def __init__(self, folder: Path, stream: StreamConfig, payloads: int) -> None:
        schema = stream.to_schema()
        self.log = SampleLog.open(folder / "samples.db", schema, max_bytes=4 * 1024**2, synchronous="OFF")
        self.seconds = np.full(payloads, np.nan)
        self._timings = 0
        self.acknowledged = 0
        labels = stream.label_topic or ""
        self.ingest = Ingestor(
            config=StorageConfig(dir=folder, commit_delay=0),
            schema=schema,
            unacknowledged=1000,
            store=self.log,
            clock=VirtualClock(1.8e9),
            decode=self._timed(sample_codec(stream).decode),
            decode_label=self._timed(label_codec(stream).decode),
            is_label=lambda topic: matches(labels, topic),
            acknowledge=self._acknowledge,
            redeliver=lambda: None,
            on_batch=lambda batch, _: self._check(batch.x),
            on_labels=lambda _: None,
            on_committed=lambda _: None,
            on_rejected=lambda _: None,
            beat=lambda: None,
        )

    def _timed(self, decode: Callable[[str, bytes], Any]) -> Callable[[str, bytes], Any]:
        """In time of the processor: on a busy machine others take their share of the wall's."""

        def timed(topic: str, payload: bytes) -> Any:
            started = time.thread_time_ns()
            try:
                return decode(topic, payload)
            finally:
                self.seconds[self._timings] = (time.thread_time_ns() - started) * 1e-9
                self._timings += 1

        return timed

    def _acknowledge(self, deliveries: Any) -> None:
        self.acknowledged += len(deliveries)

    @staticmethod
    def _check(x: Any) -> None:
        assert np.isfinite(x).all(), "what is not finite must never get here"


def resident() -> float:
    """Megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def fed(folder: Path, name: str, payloads: int) -> dict[str, float]:
    """What became of so many payloads."""
    way = Way(folder, StreamConfig(**(POSITIONAL if name == "positional" else NAMED)), payloads)
    source = Mutations(GOOD[name], seed=payloads)
    after_a_tenth = 0.0
    with closing(way.log):
        for start in range(0, payloads, GROUP):
            way.ingest.work(
                [
                    ReceivedMessage(
                        "labels/m1" if mid % 3 == 0 else "s/m1", payload, mid + 1, 1, False, False, 1, 0.0
                    )
                    for mid, payload in enumerate(source.take(GROUP))
                ]
            )
            if start + GROUP >= payloads // 10 and not after_a_tenth:
                after_a_tenth = resident()
        reasons, counters = way.log.quarantine_counts(), way.log.counters()
    assert way.acknowledged == payloads, "whatever it was, the broker must not send it for ever"
    assert "internal" not in reasons, "a decoder failed"
    assert counters.samples > payloads // 20
    assert counters.quarantined > payloads // 4
    assert len(reasons) >= 9, reasons
    return {
        "p99": float(np.quantile(way.seconds, 0.99)),
        "worst": float(way.seconds.max()),
        "growth": resident() - after_a_tenth,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_mutated_payloads_neither_stop_nor_slow_the_stream(tmp_path: Path, name: str) -> None:
    figures = fed(tmp_path, name, 25_000)
    assert figures["p99"] <= SLOWEST, figures


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", GOOD)
def test_a_million_mutated_payloads_leave_no_trace(tmp_path: Path, name: str) -> None:
    figures = fed(tmp_path, name, 500_000)
    print(figures)  # noqa: T201  the figures of the long form
    assert figures["p99"] <= SLOWEST, figures
    assert figures["growth"] <= GROWTH, figures
