"""Several steps in one call, over both engines: the same as one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load

from edged.bundles.build import build
from edged.bundles.graph.optimizers import Optimizer
from edged.bundles.graph.templates import mlp
from edged.domain.protocols import Anchor, LearningRate
from edged.engines import open_engine
from edged.engines.portable.engine import FEWEST, PortableEngine
from edged.errors import BundleError, TrainingError
from edged.storage.models.bundles import Bundle
from tests.engines.bundles import batches, classifier

if TYPE_CHECKING:
    from edged.domain.protocols import Engine

RATE = LearningRate(0.02, warmup=7, total=60)
Batches = list[tuple[np.ndarray, np.ndarray]]


def state(engine: Engine) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in engine.parameters().items()}


def both_ways(bundle: Bundle, made: Batches, name: str = "portable") -> tuple[Engine, Engine]:
    """An engine that made all steps together, and one that made them one by one; losses are compared."""
    together, alone = open_engine(name, bundle), open_engine(name, bundle)
    for engine in (together, alone):
        engine.begin(RATE)
    done = together.steps(made)
    assert done == [alone.step(x, y) for x, y in made[: len(done)]]
    return together, alone


@pytest.mark.parametrize("name", ["native", "portable"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("rows", [1, 16])
def test_they_come_to_the_same_bits(tmp_path: Path, name: str, optimizer: str, rows: int) -> None:
    bundle = classifier(tmp_path / "b", optimizer=optimizer)
    together, alone = both_ways(bundle, batches(40, rows), name)
    assert state(together) == state(alone)
    (x, y), *rest = batches(9, rows, seed=3)
    assert together.step(x, y) == alone.step(x, y), "moments and schedule are the same too"
    assert together.steps(rest[:1]) + together.steps(rest[1:]) == [alone.step(*batch) for batch in rest]


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_pytorch", "sgd", "sgd_momentum"])
def test_every_optimizer(tmp_path: Path, optimizer: str) -> None:
    options = {"beta2": 0.5} if optimizer.startswith("adamw") else {}
    rule = Optimizer.of(optimizer, weight_decay=0.05, clip_norm=0.5, **options)
    bundle = build(mlp(5, 3, (8,)), tmp_path / "b", loss="cross_entropy", optimizer=rule, engine="portable")
    together, alone = both_ways(bundle, batches(70, 4))
    assert state(together) == state(alone)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd_momentum"])
def test_a_moment_without_gradients_ends_at_0_and_not_at_subnormal_numbers(
    tmp_path: Path, optimizer: str
) -> None:
    made = batches(1000, 2)
    for x, _ in made[1:]:
        x[:, 0] = 0  # of an input that is 0, weights have no gradient
    together, alone = both_ways(classifier(tmp_path / "b", optimizer=optimizer), made)
    assert state(together) == state(alone)
    alone.save(tmp_path)
    kept = load((tmp_path / "state.safetensors").read_bytes())
    moment = kept["first/layer1.weight" if optimizer == "adamw" else "momentum/layer1.weight"]
    assert not moment[:, 0].any()
    assert moment[:, 1:].any()


def test_batches_of_several_sizes(tmp_path: Path) -> None:
    made = [*batches(25, 8), *batches(1, 3), *batches(18, 4), *batches(3, 1)]
    made += [*batches(18, 1500), *batches(2, 40_000)]  # enough of them to stack, and too large for it
    together, alone = both_ways(classifier(tmp_path / "b"), made)
    assert state(together) == state(alone)
    assert together.steps([]) == []


@pytest.mark.parametrize("name", ["native", "portable"])
@pytest.mark.parametrize("at", [0, 4, 19])
def test_they_end_with_the_first_step_that_changes_nothing(tmp_path: Path, name: str, at: int) -> None:
    made = batches(20, 8)
    made[at] = (np.full_like(made[at][0], np.nan), made[at][1])
    bundle = classifier(tmp_path / "b", standardise=False)
    together, alone = open_engine(name, bundle), open_engine(name, bundle)
    done = together.steps(made)
    assert [step.applied for step in done] == [True] * at + [False]
    for x, y in made[:at]:
        alone.step(x, y)
    assert state(together) == state(alone)
    rest = batches(5, 8, seed=2)
    assert together.steps(rest) == [alone.step(x, y) for x, y in rest]


def test_a_batch_that_does_not_fit_is_one_clear_line(tmp_path: Path) -> None:
    engine = open_engine("portable", classifier(tmp_path / "b"))
    good = batches(3, 8)
    x, y = good[0]
    wrong: list[tuple[Any, Any]] = [
        (x[:, :4], y), (x.astype(np.float64), y), (x, y.astype(np.int32)), (x[:0], y[:0]),
    ]  # fmt: skip
    wrong.append((x, np.full_like(y, 9)))
    for x, y in wrong:
        with pytest.raises(TrainingError, match="refuses a batch"):
            engine.steps([(x, y)] * FEWEST)
    assert all(step.applied for step in engine.steps(good))


def test_with_kept_gradients_and_with_an_anchor_they_are_made_one_by_one(tmp_path: Path) -> None:
    bundle, made = classifier(tmp_path / "b"), batches(FEWEST, 8)
    together, alone = PortableEngine(bundle), PortableEngine(bundle)
    for engine in (together, alone):
        engine.step(*made[0], apply=False)
    assert together.steps(made) == [alone.step(x, y) for x, y in made]
    for engine in (together, alone):
        engine.guide(Anchor(dict.fromkeys(["layer2.bias"], np.ones(3, np.float32)), 0.5))
    assert together.steps(made) == [alone.step(x, y) for x, y in made]
    assert state(together) == state(alone)


def test_a_bundle_with_very_large_parameters_has_no_graph_for_it(tmp_path: Path) -> None:
    bundle = build(mlp(5, 3, (260, 256)), tmp_path / "b", loss="cross_entropy", engine="portable")
    engine = PortableEngine(bundle)
    assert engine.together == 1
    assert "step_many_model.onnx" not in bundle.files
    assert [step.applied for step in engine.steps(batches(FEWEST, 4))] == [True] * FEWEST


def test_a_damaged_graph_is_one_clear_line(tmp_path: Path) -> None:
    bundle = classifier(tmp_path / "b")
    (bundle.path / "step_many_model.onnx").write_bytes(b"\x08\x08garbage")
    engine = PortableEngine(Bundle.open(bundle.path, verify=False))
    with pytest.raises(BundleError, match="the step graph cannot be loaded"):
        engine.steps(batches(FEWEST, 4))
