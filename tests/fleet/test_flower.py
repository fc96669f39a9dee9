"""The same aggregates as Flower's strategies make, where Flower is installed (extra `flower`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edged.domain.deltas import Coding, code, decode
from edged.domain.federated.layout import Layout
from edged.domain.federated.reduce import Contribution, Mean, Reducer
from edged.domain.federated.robust import Matrix, median, trimmed_mean
from tests.fleet.senders import SHAPES, base_weights, change_of

flwr = pytest.importorskip("flwr.serverapp.strategy")
app = pytest.importorskip("flwr.app")

NAMES = [f"d{n:02}" for n in range(23)]
LAYOUT = Layout.of(base_weights())
STRATEGIES: dict[str, tuple[Any, Reducer]] = {
    "FedAvg": (flwr.FedAvg(), Mean()),
    "FedTrimmedAvg": (flwr.FedTrimmedAvg(beta=0.2), Matrix(trimmed_mean(0.2))),
    "FedMedian": (flwr.FedMedian(), Matrix(median)),
}


def drawn() -> list[tuple[str, int, dict[str, Any]]]:
    found = []
    for name in NAMES:
        change, samples = change_of(name, 1, SHAPES)
        found.append((name, samples, code(change, Coding("int8"))))
    return found


def reply(number: int, samples: int, weights: dict[str, Any]) -> Any:
    """What a ClientApp would have answered with these weights."""
    content = app.RecordDict({
        "arrays": app.ArrayRecord({name: app.Array(value) for name, value in weights.items()}),
        "metrics": app.MetricRecord({"num-examples": samples}),
    })  # fmt: skip
    asked = app.Message(content=app.RecordDict(), dst_node_id=number, message_type="train")
    return app.Message(content=content, reply_to=asked)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_model_is_that_of_the_strategy(name: str) -> None:
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    identity.run_id, identity.task_id, identity.node_id = 1, 1, 1
    strategy, reducer = STRATEGIES[name]
    base = base_weights()
    reducer.begin(LAYOUT, len(NAMES))
    replies = []
    for number, (device, samples, coded) in enumerate(drawn(), 1):
        reducer.add(Contribution(device, samples, 1.0, LAYOUT.row(coded)))
        change = decode(coded)
        replies.append(reply(number, samples, {key: base[key] + change[key] for key in base}))
    ours = LAYOUT.weights(LAYOUT.vector(base) + reducer.finish().change)
    arrays, _ = strategy.aggregate_train(1, replies)
    for key, value in ours.items():
        assert np.abs(arrays[key].numpy() - value).max() <= 1e-5, key
