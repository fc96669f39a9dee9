"""Dynamic regularisation: devices that train to the end of their own problem still agree on that of all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edged.domain.federated.feddyn import fitting, moved_on, pulled
from edged.domain.training.weight_deltas import Coding, code
from edged.fleet.rules.aggregation import AdmittedUpdate, FedDyn, Mean
from edged.fleet.rules.layout import Layout

Weights = dict[str, np.ndarray[Any, np.dtype[np.float32]]]

STEEP = np.array([1.0, 2.0, 9.0])
PLACE = np.array([[0.0, 1.0], [4.0, -1.0], [1.0, 3.0]])
"""Three devices: device k wants to be at PLACE[k], and is STEEP[k] times as sure as the first."""
OF_ALL = (STEEP[:, None] * PLACE).sum(axis=0) / STEEP.sum()


def contribution(layout: Layout, device: str, update: Weights) -> AdmittedUpdate:
    return AdmittedUpdate(device, 1, 1.0, layout.row(code(update, Coding("float32"))))


def settled(dynamic: float, rounds: int = 60) -> np.ndarray[Any, Any]:
    """The model after rounds in each of which each device goes to the minimum of its penalised problem."""
    model: Weights = {"w": np.zeros(2, np.float32)}
    layout = Layout.of(model)
    memory: dict[str, np.ndarray[Any, Any]] = {}
    moved: list[Weights] = [{} for _ in STEEP]
    for _ in range(rounds):
        reducer = FedDyn(Mean(), memory, len(STEEP)) if dynamic else Mean()
        reducer.begin(layout, len(STEEP))
        for k, (steep, place) in enumerate(zip(STEEP, PLACE, strict=True)):
            at, strength = pulled(model, moved[k], dynamic, 0.1) if dynamic else (model, 0.1)
            best = (steep * place + strength * at["w"]) / (steep + strength)
            update = {"w": (best - model["w"]).astype(np.float32)}
            moved[k] = moved_on(moved[k], update, model)
            reducer.add(contribution(layout, f"d{k}", update))
        made = reducer.finish()
        memory = dict(made.memory)
        model = layout.weights(layout.vector(model) + made.change)
    return model["w"]


def test_devices_agree_on_the_optimum_of_all_and_not_on_the_mean_of_theirs() -> None:
    assert np.abs(settled(1.0) - OF_ALL).max() < 1e-3
    assert np.abs(settled(0.0) - OF_ALL).max() > 0.2


def test_two_penalties_are_one() -> None:
    base = {"w": np.array([1.0, 2.0], np.float32)}
    moved = {"w": np.array([0.5, -1.0], np.float32)}
    at, strength = pulled(base, moved, 0.3, 0.1)
    w = np.array([-3.0, 5.0])
    one = strength * ((w - at["w"]) ** 2).sum()
    two = 0.3 * ((w - base["w"] + moved["w"]) ** 2).sum() + 0.1 * ((w - base["w"]) ** 2).sum()
    constant = 0.3 * 0.1 / 0.4 * (moved["w"] ** 2).sum()
    assert one + constant == pytest.approx(two, rel=1e-5)


def test_what_is_of_another_network_counts_as_nothing() -> None:
    base = {"w": np.ones(2, np.float32), "b": np.ones(1, np.float32)}
    other = {"w": np.ones(3, np.float32), "b": np.full(1, 4.0, np.float32), "old": np.ones(2, np.float32)}
    assert list(fitting(other, base)) == ["b"]
    at, _ = pulled(base, other, 1.0, 0.0)
    assert (at["w"].tolist(), at["b"].tolist()) == ([1.0, 1.0], [-3.0])
    on = moved_on(other, {"w": np.full(2, 0.5, np.float32)}, base)
    assert {name: value.tolist() for name, value in on.items()} == {"w": [0.5, 0.5], "b": [4.0]}


def test_devices_that_take_no_part_have_not_moved() -> None:
    layout = Layout.of({"w": np.zeros(2, np.float32)})
    reducer = FedDyn(Mean(), {}, 10)
    reducer.begin(layout, 10)
    for k in range(5):
        reducer.add(contribution(layout, f"d{k}", {"w": np.ones(2, np.float32)}))
    made = reducer.finish()
    assert made.change.tolist() == [1.5, 1.5]
    assert made.memory["moved"].tolist() == [0.5, 0.5]
