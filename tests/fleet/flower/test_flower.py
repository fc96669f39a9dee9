"""Our aggregation against that of Flower's strategies: `make test-flower` runs these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edged.domain.training.weight_coding import Floats, code
from edged.fleet.rules.aggregation import AdmittedUpdate, Matrix, Mean, Reducer, median, trimmed_mean
from edged.fleet.rules.layout import Layout
from edged_flower import compat
from tests.fleet.matrix import InMemoryMatrix
from tests.fleet.senders import SHAPES, base_weights, change_of

flwr = pytest.importorskip("flwr.serverapp.strategy")
app = pytest.importorskip("flwr.app")

NAMES = [f"d{n:02}" for n in range(23)]
BASE = dict(sorted(base_weights().items()))
LAYOUT = Layout.of(BASE)
OURS: dict[str, Reducer] = {
    "FedAvg": Mean(),
    "FedTrimmedAvg": Matrix(trimmed_mean(0.2), InMemoryMatrix()),
    "FedMedian": Matrix(median, InMemoryMatrix()),
}


@pytest.fixture(autouse=True)
def ready() -> None:
    """Give messages the task that they ask for, which Flower's own programs set."""
    from flwr.supercore.task_identity import TaskIdentity

    compat.require()
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1


def contributions(number: int = 1, names: list[str] = NAMES) -> list[AdmittedUpdate]:
    found = []
    for name in names:
        change, samples = change_of(name, number, SHAPES)
        found.append(AdmittedUpdate(name, samples, 1.0, LAYOUT.row(code(change, "int8"))))
    return found


def reply(node: int, samples: int, weights: dict[str, Any]) -> Any:
    """What a ClientApp would have answered with these weights."""
    content = app.RecordDict({
        "arrays": app.ArrayRecord({name: app.Array(value) for name, value in weights.items()}),
        "metrics": app.MetricRecord({"num-examples": samples}),
    })  # fmt: skip
    asked = app.Message(content=app.RecordDict(), dst_node_id=node, message_type="train")
    return app.Message(content=content, reply_to=asked)


class Nodes:
    """Nodes of which only the number is asked."""

    def get_node_ids(self) -> list[int]:
        return list(range(1, len(NAMES) + 1))


def by_flower(strategy: Any, base: dict[str, Floats], number: int) -> dict[str, Any]:
    """A round of Flower itself."""
    record = app.ArrayRecord({name: app.Array(value) for name, value in base.items()})
    strategy.configure_train(number, record, app.ConfigRecord(), Nodes())
    replies = []
    for node, one in enumerate(contributions(number), 1):
        change = LAYOUT.weights(LAYOUT.change(one.row))
        replies.append(reply(node, one.samples, {name: base[name] + change[name] for name in base}))
    arrays, _ = strategy.aggregate_train(number, replies)
    return {name: arrays[name].numpy() for name in base}


def reduced(reducer: Reducer, number: int = 1) -> Any:
    found = contributions(number)
    reducer.begin(LAYOUT, len(found))
    for one in found:
        reducer.add(one)
    return reducer.finish()


@pytest.mark.parametrize("name", OURS)
def test_the_model_of_our_reducers_is_that_of_the_strategy(name: str) -> None:
    options = {"beta": 0.2} if name == "FedTrimmedAvg" else {}
    strategy = getattr(flwr, name)(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1, **options)
    expected = by_flower(strategy, BASE, 1)
    ours = LAYOUT.weights(LAYOUT.vector(BASE) + reduced(OURS[name]).change)
    for key, value in ours.items():
        assert np.abs(expected[key] - value).max() <= 1e-5, key
