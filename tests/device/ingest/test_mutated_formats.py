"""The same as in test_mutations.py for the other formats: broken payloads on the way of every message."""

from __future__ import annotations

from contextlib import closing
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from edged.mqtt.client.message import ReceivedMessage
from tests.device.ingest.test_mutations import GROUP, GROWTH, SLOWEST, Way, alone, parsing, resident
from tests.formats import STREAMS, introductions, stream, topic, written
from tests.mutations import Mutations

NAMES = [name for name in STREAMS if name != "json"]
LONG = -(-1_000_000 // (len(NAMES) * GROUP)) * GROUP
BRIEFLY = 2 * SLOWEST  # of few payloads, one that another process interrupts counts for more
REASONS = {"csv": 5, "float32": 2, "float16": 2, "int16": 1}


def good(name: str) -> list[bytes]:
    """Messages that were good before something happened to them."""
    payloads = [written(name, values) for values in ([1.0, 2, 3], [0.0, 0, 0], [-1.5, 2.25, 1024])]
    if name not in ("float32", "float16", "int16"):
        payloads.append(written(name, [1, 2, 3], None, None))
    return payloads + [payload for _, payload in introductions(name)]


def fed(folder: Path, name: str, payloads: int) -> dict[str, float]:
    """What became of so many payloads."""
    config = stream(name)
    way = Way(folder, config)
    messages = good(name)
    source, start, counted = Mutations(messages, seed=payloads), 0.0, 0
    yardstick = [parsing()]
    with closing(way.log):
        for number in range(payloads // GROUP):
            # What must be heard before comes whole now and then: broken births forget the good ones.
            opening = introductions(name) if number % 10 == 0 else []
            places = [opening[-1][0] if opening else topic(name), *[topic(name)] * 49]
            taken = [*opening, *zip(cycle(places), source.take(GROUP), strict=False)]
            way.work(
                [
                    ReceivedMessage(place, p, i + 1, 1, False, False, 1, 0.0)
                    for i, (place, p) in enumerate(taken)
                ]
            )
            counted += len(taken)
            if number >= payloads // GROUP // 10 and not start:
                start = resident()
        yardstick.append(parsing())
        reasons, counters = way.log.quarantine_counts(), way.log.counters()
    assert way.acknowledged == counted
    assert "internal" not in reasons, "a decoder failed"
    assert counters.samples > payloads // 20
    assert counters.quarantined > payloads // 5
    assert len(reasons) >= REASONS.get(name, 5), reasons
    return {"p99": float(np.nanquantile(way.seconds, 0.99)) / max(yardstick), "growth": resident() - start}


@pytest.mark.parametrize("name", NAMES)
def test_mutated_payloads_neither_stop_nor_slow_the_stream(tmp_path: Path, name: str) -> None:
    assert fed(tmp_path, name, 3000)["p99"] <= BRIEFLY


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_a_million_mutated_payloads_of_all_formats_leave_no_trace(tmp_path: Path, name: str) -> None:
    figures = alone(fed, tmp_path, name, LONG)
    print(name, figures)  # noqa: T201  the figures of the long form
    assert figures["p99"] <= SLOWEST, figures
    assert figures["growth"] <= GROWTH, figures
