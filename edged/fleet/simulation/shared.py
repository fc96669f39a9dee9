"""What all virtual devices share: the bundle, engines on it, and models asked about rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.federated.settings import Encoding, RoundSettings
from edged.domain.judging.outputs import answers, errors, probabilities
from edged.domain.stream.sample import Window
from edged.domain.training.batch_pool import labels_for
from edged.engines.inference import InferenceModel
from edged.engines.portable.description import Description, base_model
from edged.engines.portable.engine import PortableEngine
from edged.trainer.fleet_training import CarriedState, RoundTrainer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from edged.domain.stream.schema import Schema
    from edged.storage.models.bundles import Bundle

    Weights = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Evaluated:
    """Mean loss and accuracy on some rows; NaN without any."""

    loss: float
    accuracy: float


class SharedSetup:
    """A bundle of a classifier, and a recording `x` `(n, d)` with classes `y` `(n,)`."""

    def __init__(self, bundle: Bundle, schema: Schema, x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
        self.bundle, self.schema = bundle, schema
        self._x, self._y = x, y.astype(np.float32).reshape(-1, 1)
        self._base = base_model(bundle, Description.of(bundle))

    def initial(self) -> dict[str, NDArray[np.float32]]:
        """The weights that the bundle begins with."""
        return self._base.parameters()

    def window(self, rows: NDArray[np.int64]) -> Window:
        """Rows as the sample log would give them."""
        return Window(rows, rows, np.ascontiguousarray(self._x[rows]), np.ascontiguousarray(self._y[rows]))

    def labels(self, y: NDArray[np.float32]) -> NDArray[Any]:
        """Labels as engines take them."""
        return labels_for(self.bundle.label_loss, y, self.bundle.output.width)

    def engine(self, _held: bool = False) -> PortableEngine:
        """Create a new engine."""
        return PortableEngine(self.bundle)

    def evaluate(self, weights: Weights, scratch: Path, *parts: NDArray[np.int64]) -> list[Evaluated]:
        """Evaluate a model with these weights on each part; `scratch` is a file that it can overwrite."""
        scratch.write_bytes(bytes(self._base.with_parameters(weights)))
        window = self.window(np.concatenate(parts))
        raw = InferenceModel(scratch, threads=1).predict(window.x)
        lost = _surprise(probabilities(raw), window.y)
        wrong = errors(self.schema, answers(self.schema, raw), window.y)
        ends = np.cumsum([len(part) for part in parts])[:-1]
        return [
            Evaluated(float(a.mean()), 1.0 - float(b.mean()))
            if len(a)
            else Evaluated(float("nan"), float("nan"))
            for a, b in zip(np.split(lost, ends), np.split(wrong, ends), strict=True)
        ]

    def trained(
        self, weights: Weights, rows: NDArray[np.int64], config: RoundSettings, seed: int
    ) -> dict[str, NDArray[np.float32]]:
        """Weights after training on rows, for nobody else: nothing is clipped or rounded."""
        free = RoundSettings(
            config.epochs, config.steps, config.learning_rate, config.batch_size, clip_norm=0.0,
            encoding=Encoding("float32"), personal=("*",),
        )  # fmt: skip
        window = self.window(rows)
        alone = RoundTrainer(
            begin=self.engine, trainable=self.bundle.trainable, rows=lambda: window, labels=self.labels,
            measure=lambda _: None,
        )  # fmt: skip
        made = alone.train_round({}, free, weights, CarriedState(), rng=np.random.default_rng(seed))
        return {**weights, **made.carried.personal}


def _surprise(probable: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cross-entropy `(n,)` of probabilities `(n, c)` for classes `(n, 1)`; NaN counts as 0."""
    right = probable[np.arange(len(y)), y[:, 0].astype(np.int64)].astype(np.float64)
    return np.nan_to_num(-np.log(np.maximum(right, 1e-9)))
