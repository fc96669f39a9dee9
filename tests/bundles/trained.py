"""Models that PyTorch exported and trained, from `exported/make_trained.py`, and how they are compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from tests.building import build

if TYPE_CHECKING:
    from edged.domain.protocols import Engine
    from edged.storage.models.bundles import Bundle

# What the engines call it, and the rate: as in exported/make_trained.py.
OPTIMIZERS = {"sgd": ("sgd", 0.1), "adamw": ("adamw_pytorch", 0.01)}
BOTH, PORTABLE = ("native", "portable"), ("portable",)


@dataclass(frozen=True)
class Case:
    """A model, the engines that its bundle is for, and what no gradient trains.

    After more steps than `stable` PyTorch differs from itself in double precision by more than is compared.
    """

    name: str
    engines: tuple[str, ...] = BOTH
    freeze: tuple[str, ...] = ()
    loss: str = "cross_entropy"
    stable: int = 200

    def bundle(self, folder: Path, optimizer: str, out: Path, engine: str) -> Bundle:
        """The bundle `out` of the model in `folder`."""
        model, named = folder / f"trained_{self.name}.onnx", OPTIMIZERS[optimizer][0]
        return build(model, out, loss=self.loss, optimizer=named, freeze=self.freeze, engine=engine)


CASES = [
    Case("batchnorm", PORTABLE, freeze=("*.running_*",), stable=150),
    Case("batchnorm_frozen", PORTABLE, freeze=("2.*", "6.*")),
    Case("groupnorm", PORTABLE),
    Case("average", PORTABLE),
    Case("activations", PORTABLE),
    Case("convolutions", PORTABLE),
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


def compare(case: Case, folder: Path, optimizer: str, bundle: Bundle) -> None:
    """Fail unless its engine's weights are those that PyTorch came to, after all steps that it has kept."""
    with np.load(folder / f"trained_{case.name}.npz") as file:
        known = dict(file)
    opened = open_engine(bundle.engine, bundle)
    opened.begin(LearningRate(OPTIMIZERS[optimizer][1] * float(known.pop("slower", 1.0))))
    done = 0
    for steps in sorted({int(key.partition(".")[2].partition("/")[0]) for key in known if "/" in key}):
        _train(opened, known, range(done, steps))
        _assert_equal(opened.parameters(), known, f"{optimizer}.{steps}/", 1e-5 if steps < 100 else 1e-4)
        done = steps
        if steps >= case.stable:
            break
    assert done >= 10


def _train(engine: Engine, known: dict[str, np.ndarray], steps: range) -> None:
    for step in steps:
        x, y = (known[key][step % len(known[key])] for key in "xy")
        assert engine.step(x.reshape(len(x), -1), y).applied


def _assert_equal(
    found: dict[str, np.ndarray], known: dict[str, np.ndarray], prefix: str, atol: float
) -> None:
    expected = {key: value for key, value in known.items() if key.startswith(prefix)}
    assert expected
    for key, value in expected.items():
        named = key.removeprefix(prefix)
        np.testing.assert_allclose(found[named], value, rtol=1e-4, atol=atol, err_msg=key)
