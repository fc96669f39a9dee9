"""Models that PyTorch exported and trained: the engines come to the same weights and statistics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.artifacts.build import build
from edged.domain.protocols import LearningRate
from edged.engines import open_engine

if TYPE_CHECKING:
    from edged.domain.protocols import Engine
    from edged.storage.bundles import Bundle

EXPORTED = Path(__file__).parent / "exported"
# What the engines call it, and the rate: as in exported/make_trained.py.
OPTIMIZERS = {"sgd": ("sgd", 0.1), "adamw": ("adamw_pytorch", 0.01)}
BOTH, PORTABLE = ("native", "portable"), ("portable",)


@dataclass(frozen=True)
class Case:
    """A model, the engines that must come to PyTorch's weights, and what no gradient trains."""

    name: str
    engines: tuple[str, ...] = BOTH
    freeze: tuple[str, ...] = ()
    loss: str = "cross_entropy"


CASES = [
    Case("batchnorm", PORTABLE, freeze=("*.running_*",)),
    Case("batchnorm_frozen", freeze=("2.*", "6.*")),
    Case("groupnorm"),
    Case("average", PORTABLE),
    Case("activations"),
    Case("convolutions"),
    Case("decoder", PORTABLE, loss="mse"),
    Case("lstm"),
    Case("gru"),
    Case("encoder", freeze=("*.in_proj_bias",)),
]


def bundle_of(case: Case, optimizer: str, out: Path) -> Bundle:
    model = EXPORTED / f"trained_{case.name}.onnx"
    made = build(model, out, loss=case.loss, optimizer=optimizer, freeze=case.freeze)
    assert made.engines == case.engines
    return made


def train(engine: Engine, known: dict[str, np.ndarray], steps: range) -> None:
    for step in steps:
        x, y = (known[key][step % len(known[key])] for key in "xy")
        assert engine.step(x.reshape(len(x), -1), y).applied


def assert_equal(found: dict[str, np.ndarray], known: dict[str, np.ndarray], prefix: str) -> None:
    expected = {key: value for key, value in known.items() if key.startswith(prefix)}
    assert expected
    for key, value in expected.items():
        np.testing.assert_allclose(found[key.removeprefix(prefix)], value, rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("case", "name"),
    [(case, name) for case in CASES for name in case.engines],
    ids=lambda part: getattr(part, "name", part),
)
def test_the_weights_are_pytorchs_after_1_and_10_steps(
    tmp_path: Path, case: Case, name: str, optimizer: str
) -> None:
    with np.load(EXPORTED / f"trained_{case.name}.npz") as file:
        known = dict(file)
    named, rate = OPTIMIZERS[optimizer]
    engine = open_engine(name, bundle_of(case, named, tmp_path / "b"))
    engine.begin(LearningRate(rate))
    train(engine, known, range(1))
    assert_equal(engine.parameters(), known, f"{optimizer}.1/")
    train(engine, known, range(1, 10))
    assert_equal(engine.parameters(), known, f"{optimizer}.10/")
