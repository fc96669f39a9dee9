"""Timing the engines against each other: real steps on rows that every bundle takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.bundles.build import build
from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.engines import candidates, open_engine
from edged.engines.benchmark import Timing, Workload, measure, rows_for
from edged.errors import BundleError
from tests.installed import ENGINES

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle

FAR = Statistics(np.full(5, 1e6, np.float32), np.full(5, 1e-3, np.float32))
FAR_TARGETS = Statistics(FAR.mean, FAR.scale, np.full(2, -1e5, np.float32), np.full(2, 10, np.float32))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("choice") / "b"
    return build(mlp(5, 3, (16,)), path, loss="cross_entropy", standardise=FAR)


@pytest.mark.parametrize(
    "work",
    [Workload(1), Workload(7, threads=2), Workload(4, accumulate=3)],
    ids=["1", "threads", "accumulated"],
)
def test_both_engines_are_timed(bundle: Bundle, work: Workload) -> None:
    timing = measure(bundle, ENGINES, work)
    assert tuple(timing.us) == ENGINES
    assert all(1 < us < 1e5 for us in timing.us.values())
    assert timing.batch == work.batch


def test_the_fastest_is_the_one_with_the_least_time() -> None:
    assert Timing({"native": 58.0, "portable": 57.0}, 64).fastest == "portable"
    assert Timing({"native": 58.0, "portable": 74.0}, 64).fastest == "native"


@pytest.mark.parametrize("loss", ["cross_entropy", "bce_with_logits", "mse", "l1"])
def test_the_rows_train_whatever_the_units_are(tmp_path: Path, loss: str) -> None:
    statistics = FAR_TARGETS if loss in ("mse", "l1") else FAR
    bundle = build(mlp(5, 2, (8,)), tmp_path / "b", loss=loss, standardise=statistics)
    for name in ENGINES:
        engine = open_engine(name, bundle)
        x, y = rows_for(bundle, engine, 16)
        assert x.shape == (16, 5)
        assert x.min() > 9e5, "rows are in raw units"
        assert engine.step(x, y, careful=True).applied


def test_a_damaged_step_graph_is_told(bundle: Bundle, tmp_path: Path) -> None:
    broken = build(mlp(5, 3, (16,)), tmp_path / "b", loss="cross_entropy")
    (broken.path / "step_model.onnx").write_bytes(b"not a graph")
    with pytest.raises(BundleError, match="cannot be loaded"):
        measure(broken, ENGINES, Workload(4))


def test_only_engines_that_are_here_and_in_the_bundle_are_candidates(bundle: Bundle, tmp_path: Path) -> None:
    assert candidates(bundle) == ENGINES
    alone = build(mlp(5, 3, (16,)), tmp_path / "p", loss="cross_entropy", engine="portable")
    assert candidates(alone) == ("portable",)
    assert candidates(bundle, ["CUDAExecutionProvider"]) == ("portable",), "native knows the CPU alone"
