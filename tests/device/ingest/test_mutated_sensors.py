"""What sensors of other systems send, broken in every way, on the way of every message."""

from __future__ import annotations

from contextlib import closing
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from edged.config import StreamConfig
from edged.mqtt.client.message import ReceivedMessage
from edged.storage.samples.log import SampleLog
from tests.device.ingest.test_mutations import GROUP, GROWTH, SLOWEST, Way, parsing, resident
from tests.docs.test_recipes_inputs_page import Recipe, recipes
from tests.mutations import Mutations

RECIPES = list(recipes())
BRIEFLY = 5 * SLOWEST  # few payloads, on a machine that does other things: what is slow is slower by far
every_recipe = pytest.mark.parametrize(
    "recipe", RECIPES, ids=[f"{one.name.partition(':')[0]}-{at}" for at, one in enumerate(RECIPES)]
)


def fed(folder: Path, recipe: Recipe, payloads: int) -> dict[str, float]:
    """What became of so many payloads, each on a topic of the recipe."""
    lines = recipe.messages.encode().splitlines()
    good = [("telegraf/a", line) for line in lines]
    if recipe.kind == "mqtt":
        good = [(topic.decode(), payload) for topic, payload in (line.split(b" ", 1) for line in lines)]
    stream = StreamConfig(**recipe.values["stream"])
    way, start, yardstick = Way(folder, stream), 0.0, parsing()
    source = cycle([(topic, Mutations([payload], seed=at)) for at, (topic, payload) in enumerate(good)])
    with closing(way.log):
        for first in range(0, payloads, GROUP):
            count = min(GROUP, payloads - first)
            messages = [
                (topic, mutations.take(1)[0]) for topic, mutations in (next(source) for _ in range(count))
            ]
            way.work(
                [
                    ReceivedMessage(topic, payload, number, 1, False, False, 1, 0.0)
                    for number, (topic, payload) in enumerate(messages, 1)
                ]
            )
            if first + count >= payloads // 10 and not start:
                start = resident()
        reasons = way.log.quarantine_counts()
    assert way.acknowledged == payloads, "whatever it was, the broker must not send it for ever"
    assert "internal" not in reasons, "a decoder failed"
    assert way.decoder.understood + sum(reasons.values()) == payloads, "each is used or in the quarantine"
    with closing(SampleLog.open(folder / "samples.db", stream.to_schema(), readonly=True)) as log:
        assert log.counters().samples > payloads // 50
    p90, p99 = (np.quantile(way.seconds, [0.9, 0.99]) / yardstick).tolist()
    return {"p90": p90, "p99": p99, "growth": resident() - start}


@every_recipe
def test_broken_messages_of_sensors_neither_stop_nor_slow_the_stream(tmp_path: Path, recipe: Recipe) -> None:
    assert fed(tmp_path, recipe, 250)["p90"] <= BRIEFLY, "three of 250 may meet a garbage collection"


@pytest.mark.faults
@pytest.mark.timeout(1800)
@every_recipe
def test_broken_messages_of_sensors_leave_no_trace(tmp_path: Path, recipe: Recipe) -> None:
    figures = fed(tmp_path, recipe, -(-300_000 // len(RECIPES)))
    print(recipe.name, figures)  # noqa: T201  the figures of the long form
    assert figures["p99"] <= SLOWEST, figures
    assert figures["growth"] <= GROWTH, figures
