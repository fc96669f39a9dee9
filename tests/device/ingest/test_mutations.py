"""Payloads that nobody should send, by the hundred thousand, on the way that every message takes."""

from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.clock import VirtualClock
from edged.config import Config, DeviceConfig, MqttConfig, StorageConfig, StreamConfig
from edged.device.events import Events
from edged.device.ingest.committer import GroupCommitter
from edged.device.ingest.decoder import SampleDecoder
from edged.device.ingest.ingestor import Ingestor
from edged.device.ingest.joiner import Joiner
from edged.device.ingest.notices import IngestNotices
from edged.domain.stream.admission import AdmissionControl, AdmissionRules
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.codecs import sample_codec
from edged.storage.files.atomic import scratch
from edged.storage.samples.log import SampleLog
from tests.device.partners import Connection, Sink, Supervisor, watchdog
from tests.mutations import Mutations

if TYPE_CHECKING:
    from edged.domain.commits.commit_group import CommitGroup, Packet
    from edged.domain.stream.sample import Batch, Reading, Seen

GROUP = 500
SLOWEST = 40.0  # times what this machine takes to parse a short document, of one payload, 99 of 100
GROWTH = 8.0  # MB, after the first tenth

POSITIONAL: dict[str, Any] = {
    "features": 4, "classes": ["ok", "worn"], "ts": "ts", "id": "id", "key": "key",
    "label": {"topic": "labels/#", "path": "label", "join": "id"},
}  # fmt: skip
NAMED: dict[str, Any] = {
    "features": ["temp", "vib.x", "vib.1", "a.0.b"], "targets": 2, "ts": "ts",
    "label": {"topic": "labels/#", "path": "out.y", "join": "key_time"},
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


class Way(Connection, Sink):
    """The real way from deliveries to the sample log, timed."""

    def __init__(self, folder: Path, stream: StreamConfig) -> None:
        schema = stream.to_schema()
        with scratch():
            self.log = SampleLog.open(folder / "samples.db", schema, max_bytes=4 * 1024**2)
        self.seconds = array("d")  # a list of them would be the memory that grows
        self.acknowledged = 0
        clock = VirtualClock(1.8e9)
        notices = IngestNotices(schema, Events(), clock)
        admission = AdmissionControl(AdmissionRules(), schema.channels)
        codec = sample_codec(stream)
        decoder = self.decoder = Timed(stream, codec, admission, clock, notices, seconds=self.seconds)
        config = Config(
            device=DeviceConfig(id="d"),
            mqtt=MqttConfig().with_constants(receive_maximum=1000),
            stream=stream,
            storage=StorageConfig(dir=folder, commit_delay=0),
        )
        self.committer = GroupCommitter(
            config, self.log, broker=self, serving=self, supervisor=Supervisor(), decoder=decoder,
            notices=notices, clock=clock, watchdog=watchdog(),
        )  # fmt: skip
        self.ingestor = Ingestor(
            config, self.log, decoder=decoder, joiner=Joiner(stream, admission, clock, notices), serving=self,
            committer=self.committer, clock=clock, watchdog=watchdog(),
        )  # fmt: skip

    def work(self, deliveries: list[ReceivedMessage]) -> None:
        """Take in messages and commit them without delay."""
        self.ingestor.ingest_messages(deliveries)
        self.committer.commit()

    def ack(self, deliveries: Any) -> None:
        self.acknowledged += len(deliveries)

    def submit(self, batch: Batch, received: Any) -> None:
        del received
        assert np.isfinite(batch.x).all(), "what is not finite must never get here"


class Timed(SampleDecoder):
    """Notes seconds of each message, in time of the processor: on a busy machine others take their share.

    `understood` counts those that said something.
    """

    def __init__(self, *partners: Any, seconds: array[float]) -> None:
        super().__init__(*partners)
        self._seconds = seconds
        self.understood = 0

    def decode(
        self, delivery: ReceivedMessage, packet: Packet, group: CommitGroup
    ) -> Reading | list[Seen] | None:
        started = time.thread_time_ns()
        found = super().decode(delivery, packet, group)
        self._seconds.append((time.thread_time_ns() - started) * 1e-9)
        self.understood += found is not None
        return found


def parsing() -> float:
    """Seconds of the processor that parsing a document of 21 numbers takes here and now, the median."""
    document, seconds = json.dumps({"x": [n / 7 for n in range(20)], "ts": 1.7e9}), []
    for _ in range(1000):
        started = time.thread_time_ns()
        json.loads(document)
        seconds.append((time.thread_time_ns() - started) * 1e-9)
    return float(np.median(seconds))


def resident() -> float:
    """Megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def fed(folder: Path, name: str, payloads: int) -> dict[str, float]:
    """What became of so many payloads."""
    way = Way(folder, StreamConfig(**(POSITIONAL if name == "positional" else NAMED)))
    source = Mutations(GOOD[name], seed=payloads)
    after_a_tenth, yardstick = 0.0, [parsing()]
    with closing(way.log):
        for start in range(0, payloads, GROUP):
            way.work(
                [
                    ReceivedMessage(
                        "labels/m1" if mid % 3 == 0 else "s/m1", payload, mid + 1, 1, False, False, 1, 0.0
                    )
                    for mid, payload in enumerate(source.take(GROUP))
                ]
            )
            if start + GROUP >= payloads // 10 and not after_a_tenth:
                after_a_tenth = resident()
        yardstick.append(parsing())
        reasons, counters = way.log.quarantine_counts(), way.log.counters()
    assert way.acknowledged == payloads, "whatever it was, the broker must not send it for ever"
    assert "internal" not in reasons, "a decoder failed"
    assert counters.samples > payloads // 20
    assert counters.quarantined > payloads // 4
    assert len(reasons) >= 9, reasons
    return {
        "p99": float(np.quantile(way.seconds, 0.99)) / max(yardstick),
        "worst": max(way.seconds) / max(yardstick),
        "growth": resident() - after_a_tenth,
    }


def alone(feed: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
    """Figures of a feed in a process of its own: what other tests left in this one is no growth."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(feed, *arguments).result()


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_mutated_payloads_neither_stop_nor_slow_the_stream(tmp_path: Path, name: str) -> None:
    figures = fed(tmp_path, name, 25_000)
    assert figures["p99"] <= SLOWEST, figures


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", GOOD)
def test_a_million_mutated_payloads_leave_no_trace(tmp_path: Path, name: str) -> None:
    figures = alone(fed, tmp_path, name, 500_000)
    print(figures)  # noqa: T201  the figures of the long form
    assert figures["p99"] <= SLOWEST, figures
    assert figures["growth"] <= GROWTH, figures
