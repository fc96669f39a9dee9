"""Models that PyTorch exported and trained, from `exported/make_trained.py`, and how they are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edged.bundles.build import build
from edged.domain.protocols import LearningRate
from edged.engines import open_engine

if TYPE_CHECKING:
    from pathlib import Path

    from edged.domain.protocols import Engine
    from edged.storage.models.bundles import Bundle

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

    def bundle(self, folder: Path, optimizer: str, out: Path) -> Bundle:
        """The bundle `out` of the model in `folder`."""
        model = folder / f"trained_{self.name}.onnx"
        made = build(model, out, loss=self.loss, optimizer=optimizer, freeze=self.freeze)
        assert made.engines == self.engines
        return made


CASES = [
    Case("batchnorm", PORTABLE, freeze=("*.running_*",)),
    Case("batchnorm_frozen", PORTABLE, freeze=("2.*", "6.*")),
    Case("groupnorm", PORTABLE),
    Case("average", PORTABLE),
    Case("activations", PORTABLE),
    Case("convolutions"),
    Case("decoder", PORTABLE, loss="mse"),
    Case("lstm"),
    Case("gru"),
    Case("encoder", PORTABLE, freeze=("*.in_proj_bias",)),
    Case("mlp"),
    Case("cnn1d"),
    Case("cnn2d", PORTABLE, freeze=("1.*", "5.*")),
    Case("separable", PORTABLE, freeze=("norm.*",)),
    Case("autoencoder", loss="mse"),
]


def compare(case: Case, folder: Path, engine: str, optimizer: str, out: Path) -> None:
    """Fail unless the engine's weights after 1 and 10 steps are those that PyTorch came to."""
    with np.load(folder / f"trained_{case.name}.npz") as file:
        known = dict(file)
    named, rate = OPTIMIZERS[optimizer]
    opened = open_engine(engine, case.bundle(folder, named, out))
    opened.begin(LearningRate(rate))
    _train(opened, known, range(1))
    _assert_equal(opened.parameters(), known, f"{optimizer}.1/")
    _train(opened, known, range(1, 10))
    _assert_equal(opened.parameters(), known, f"{optimizer}.10/")


def _train(engine: Engine, known: dict[str, np.ndarray], steps: range) -> None:
    for step in steps:
        x, y = (known[key][step % len(known[key])] for key in "xy")
        assert engine.step(x.reshape(len(x), -1), y).applied


def _assert_equal(found: dict[str, np.ndarray], known: dict[str, np.ndarray], prefix: str) -> None:
    expected = {key: value for key, value in known.items() if key.startswith(prefix)}
    assert expected
    for key, value in expected.items():
        np.testing.assert_allclose(found[key.removeprefix(prefix)], value, rtol=1e-4, atol=1e-5, err_msg=key)
