"""Flower's strategies and ours, where edged-flower is installed: `make test-flower` runs these."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.domain.training.weight_coding import Floats, code, decode
from edged.fleet.config import STRATEGIES
from edged.fleet.coordinator.journal import read_lineage
from edged.fleet.rules.aggregation import AdmittedUpdate, Matrix, Mean, Reducer, median, trimmed_mean
from edged.fleet.rules.layout import Layout
from edged_flower import compat
from edged_flower.reducer import MEMORY, Strategy, made, memory_of
from tests.fleet.matrix import InMemoryMatrix
from tests.fleet.senders import SHAPES, Senders, base_weights, change_of

if TYPE_CHECKING:
    from tests.conftest import MakeBroker
    from tests.fleet.conftest import MakeSite

flwr = pytest.importorskip("flwr.serverapp.strategy")
app = pytest.importorskip("flwr.app")

NAMES = [f"d{n:02}" for n in range(23)]
BASE = dict(sorted(base_weights().items()))
LAYOUT = Layout.of(BASE)
GIVEN: dict[str, dict[str, float]] = {
    "FedAvg": {}, "FedAvgM": {"server_momentum": 0.9}, "FedAdagrad": {},
    "FedAdam": {"eta": 0.01}, "FedYogi": {"beta_1": 0.5}, "FedMedian": {}, "FedTrimmedAvg": {"beta": 0.2},
    "Krum": {"num_malicious_nodes": 2}, "MultiKrum": {"num_malicious_nodes": 2, "num_nodes_to_select": 9},
    "Bulyan": {"num_malicious_nodes": 2},
}  # fmt: skip
OURS: dict[str, Reducer] = {
    "FedAvg": Mean(),
    "FedTrimmedAvg": Matrix(trimmed_mean(0.2), InMemoryMatrix()),
    "FedMedian": Matrix(median, InMemoryMatrix()),
}


@pytest.fixture(autouse=True)
def ready() -> None:
    compat.require()


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


def test_every_strategy_is_tried_here() -> None:
    assert set(GIVEN) == set(STRATEGIES)


@pytest.mark.parametrize("name", GIVEN)
def test_rounds_are_those_of_the_strategy_itself(name: str) -> None:
    theirs = made(name, GIVEN[name])
    base = BASE
    memory: Mapping[str, Any] = {}
    for number in (1, 2, 3):
        expected = by_flower(theirs, base, number)
        aggregate = reduced(Strategy(name, GIVEN[name], base, number, memory), number)
        weights = LAYOUT.weights(LAYOUT.vector(base).astype(np.float64) + aggregate.change)
        for key, value in expected.items():
            np.testing.assert_array_equal(weights[key], value.astype(np.float32))
        # A strategy that goes on by itself has not rounded its model, as it is sent.
        base, memory = weights, aggregate.memory
        theirs.current_arrays = app.ArrayRecord({k: app.Array(v) for k, v in base.items()})


@pytest.mark.parametrize("name", GIVEN)
def test_all_that_a_strategy_remembers_is_kept(name: str) -> None:
    strategy = made(name, GIVEN[name])
    fresh = copy.copy(vars(strategy))
    by_flower(strategy, BASE, 1)
    changed = {key for key, value in vars(strategy).items() if value is not fresh[key]} - {"current_arrays"}
    assert changed <= set(MEMORY)
    assert {key.partition("/")[0] for key in memory_of(strategy, LAYOUT.names)} == changed


@pytest.mark.parametrize("name", OURS)
def test_the_model_of_our_reducers_is_that_of_the_strategy(name: str) -> None:
    options = {"beta": 0.2} if name == "FedTrimmedAvg" else {}
    expected = by_flower(made(name, options), BASE, 1)
    ours = LAYOUT.weights(LAYOUT.vector(BASE) + reduced(OURS[name]).change)
    for key, value in ours.items():
        assert np.abs(expected[key] - value).max() <= 1e-5, key


def test_rounds_over_mqtt_remember_through_a_restart(make_broker: MakeBroker, make_site: MakeSite) -> None:
    broker = make_broker()
    names = NAMES[:4]
    reduce = {"how": "flower", "strategy": "FedAdam", "options": {"eta": 0.01}}
    settings = {"devices": 4, "over": 1.0, "deadline": "30s", "window": "0s"}
    site = make_site(broker.port, reduce=reduce, round=settings | {"rounds": 2})
    site.senders(names)
    site.start()
    site.finish()
    text = site.path.read_text().replace("rounds: 2", "rounds: 3")
    site.path.write_text(text)
    coordinator = site.start()
    site.finish()
    model = BASE
    theirs = made("FedAdam", {"eta": 0.01})
    for number in (1, 2, 3):
        replies = []
        record = app.ArrayRecord({name: app.Array(value) for name, value in model.items()})
        theirs.configure_train(number, record, app.ConfigRecord(), Nodes())
        for node, name in enumerate(names, 1):
            change, samples = change_of(name, number, SHAPES)
            change = decode(code(change, "int8"))
            replies.append(reply(node, samples, {key: model[key] + change[key] for key in model}))
        arrays, _ = theirs.aggregate_train(number, replies)
        model = {name: arrays[name].numpy().astype(np.float32) for name in model}
    found = site.model(coordinator.course.standing.hash)
    for key, value in model.items():
        np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-6)


def test_a_strategy_that_cannot_leaves_the_model_and_the_fleet_goes_on(
    make_broker: MakeBroker, make_site: MakeSite
) -> None:
    broker = make_broker()
    reduce = {"how": "flower", "strategy": "Bulyan", "options": {"num_malicious_nodes": 40}}
    settings = {"devices": 3, "over": 1.0, "deadline": "30s", "window": "0s", "rounds": 2}
    site = make_site(broker.port, reduce=reduce, round=settings)
    senders: Senders = site.senders(NAMES[:3])
    coordinator = site.start()
    site.finish()
    assert [entry.accepted for entry in read_lineage(site.dir)] == [False, False]
    assert "Bulyan: it made nothing of 3 updates" in read_lineage(site.dir)[0].reason
    assert coordinator.course.version == 0
    assert senders.answered(2) == 3
