"""Rounds of statistics with the standard networks: two experts for classes, and networks of numbers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.bundles.__main__ import build_standard
from edged.domain.federated.settings import RoundSettings
from edged.domain.standard_bundle import StandardBundleOrder, StandardNetwork
from edged.domain.stream.schema import Schema
from edged.engines.inference import InferenceModel
from edged.engines.model_parameters import base_of, initial_parameters
from edged.errors import ConfigError
from edged.fleet.config import StatisticsSection
from edged.fleet.rules.layout import Layout
from edged.fleet.rules.statistics import MOST_BYTES, SolvedHead, total_of
from edged.fleet.simulation.shared import SharedSetup
from edged.storage.models.bundles import Bundle
from tests.fleet.coordinator.channel import Fleet
from tests.fleet.coordinator.test_statistics import answers, send, standing

if TYPE_CHECKING:
    from edged.domain.federated.head_statistics import NetworkStatistics

FEATURES, CLASSES, COLUMNS = 6, 4, 12  # columns with context


class Site:
    """A standard network, and rows of many devices: each has a few classes or values alone."""

    def __init__(self, folder: Path, task: Any, hidden: int, rows: int = 600) -> None:
        kind: Any = "experts" if task == "classify" else "mlp"
        width, outputs = (COLUMNS, CLASSES) if task == "classify" else (FEATURES, 1)
        context = (3.0,) if task == "classify" else ()
        network = StandardNetwork(task, width, outputs, kind, (1, FEATURES), (hidden,), context=context)
        build_standard(StandardBundleOrder(network, folder / "bundle"))
        self.bundle, rng = Bundle.open(folder / "bundle"), np.random.default_rng(3)
        x = rng.normal(size=(rows, width)).astype(np.float32)
        angle = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]
        y = np.digitize(angle, [-1, 0, 1]) if task == "classify" else 40 + 3 * angle
        schema = Schema((), width, task, tuple("abcd") if task == "classify" else ())
        order = np.argsort(y, kind="stable")  # neighbours have one class, or values that are close
        self.x, self.y = x[order], y[order]
        self.setup = SharedSetup(self.bundle, schema, self.x, self.y)
        self.base = initial_parameters(self.bundle)
        targets: Any = "classes" if task == "classify" else "values"
        self.head = SolvedHead.of(Layout.of(self.base).by_name, StatisticsSection(), targets)

    def sums(self, rows: np.ndarray) -> NetworkStatistics:
        return self.setup.statistics(rows, RoundSettings(statistics=self.head.settings), self.base)

    def model(self, vectors: list[np.ndarray]) -> dict[str, np.ndarray]:
        total = total_of(self.head, ((1.0, vector) for vector in vectors))
        return dict(self.head.model(self.base, total, StatisticsSection()))

    def answered(self, weights: dict[str, np.ndarray], folder: Path) -> np.ndarray:
        path = folder / "asked.onnx"
        path.write_bytes(bytes(base_of(self.bundle).with_parameters(weights)))
        return InferenceModel(path).predict(self.x)


@pytest.mark.parametrize("task", ["classify", "regress"])
@pytest.mark.parametrize("devices", [1, 7, 60])
def test_the_sum_gives_the_model_of_central_training(tmp_path: Path, task: str, devices: int) -> None:
    site = Site(tmp_path, task, 32)
    parts = np.array_split(np.arange(len(site.x)), devices)
    order = random.Random(devices)
    there = order.sample(parts, max(1, round(0.7 * devices)))  # 30 % say nothing
    vectors = [site.sums(part).vector() for part in there]
    made, whole = site.model(vectors), np.concatenate(there)
    expected = site.model([site.sums(np.sort(whole)).vector()])
    for name, value in expected.items():
        assert np.abs(made[name] - value).max() <= 1e-6, name
    changed = {name for name in made if (made[name] != site.base[name]).any()}
    assert changed == {n for layer in site.head.settings.layers for n in (layer.weight, layer.bias)}


@pytest.mark.parametrize("task", ["classify", "regress"])
def test_it_learns_what_no_device_knows_alone(tmp_path: Path, task: str) -> None:
    site = Site(tmp_path, task, 256, 2000)
    vectors = [site.sums(part).vector() for part in np.array_split(np.arange(2000), 10)]
    assert max(vector.nbytes for vector in vectors) <= MOST_BYTES
    found = [site.answered(site.model(some), tmp_path) for some in (vectors, vectors[::9])]
    if task == "classify":
        both, few = ((raw.argmax(axis=1) == site.y).mean() for raw in found)
        assert few < 0.55
        assert both > 0.6
    else:
        both, few = (np.abs(raw[:, 0] - site.y).mean() for raw in found)
        assert both < 0.6 * np.abs(site.y - site.y.mean()).mean() < few


def test_units_that_count_are_as_many_as_an_update_may_hold(tmp_path: Path) -> None:
    site = Site(tmp_path, "classify", 256, 20)
    first, second = site.head.settings.layers
    assert (first.units, second.units) == (173, 128)
    assert 8 * site.head.size <= MOST_BYTES < 8 * site.head.size + 8 * (first.units + CLASSES + 3)
    all_of_them = SolvedHead.of(Layout.of(site.base).by_name, StatisticsSection(units=512))
    assert [layer.units for layer in all_of_them.settings.layers] == [256, 128]


@pytest.mark.parametrize("task", ["classify", "regress"])
def test_a_coordinator_leads_such_a_round_and_refuses_false_sums(tmp_path: Path, task: str) -> None:
    site = Site(tmp_path, task, 16)
    parts = dict(zip("abcd", np.array_split(np.random.default_rng(0).permutation(600), 4), strict=True))
    found = {name: site.sums(part) for name, part in parts.items()}
    made = Fleet(
        tmp_path, model=str(site.bundle.path), choose={"everyone": True}, gate={"evaluate": False},
        round={"kind": "statistics", "devices": 5, "quorum": 0.5, "deadline": "100s", "window": 0},
    )  # fmt: skip
    made.turns()
    assert made.told is not None
    assert made.told.config.statistics == site.head.settings
    for name, sums in found.items():
        send(made, name, sums)
    last = found["a"].layers[-1]
    wrong = type(last)(last.gram, last.by_target * 1e6, last.squares)
    send(made, "liar", type(found["a"])((*found["a"].layers[:-1], wrong)))
    made.turns()
    made.wait(101)
    assert answers(made) == dict.fromkeys("abcd", "accepted") | {"liar": "sums"}
    expected = site.model([sums.vector() for sums in found.values()])
    for name, value in standing(made).items():
        assert np.abs(value - expected[name]).max() <= 1e-6


def test_layers_that_fit_no_mixture_are_an_error_at_once() -> None:
    shapes = {
        f"layer{n}.{kind}": shape for n in (1, 2, 3) for kind, shape in (("weight", (4, 6)), ("bias", (4,)))
    }
    with pytest.raises(ConfigError, match="3 layers are not as many for each of 2 experts"):
        SolvedHead.of(shapes | {"mix.weights": (1, 2, 1)}, StatisticsSection())
    with pytest.raises(ConfigError, match="layers of 1 outputs"):
        SolvedHead.of({"layer1.weight": (1, 6), "layer1.bias": (1,)}, StatisticsSection())
