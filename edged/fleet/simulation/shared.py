"""What all virtual devices share: the recording, the bundle, their configuration, and models to compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.config import Config, FleetConfig, TrainingConfig
from edged.domain.federated.messages import Quality
from edged.domain.federated.settings import Encoding, RoundSettings
from edged.domain.judging.outputs import answers, errors, probabilities
from edged.domain.stream.sample import Batch, Window
from edged.engines.inference import InferenceModel
from edged.engines.portable.description import Description, base_model
from edged.trainer.fleet_training import CarriedState, RoundTrainer
from edged.trainer.task import EngineFactory, LearningTask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.federated.head_statistics import NetworkStatistics
    from edged.domain.protocols import Engine, Model
    from edged.domain.stream.sample import LabelValue
    from edged.domain.stream.schema import Schema
    from edged.storage.models.bundles import Bundle

    Weights = Mapping[str, NDArray[np.float32]]

FLEET = "sim"
RESEND = 20.0
HOLDOUT = 0.25  # of a device's own rows; a fifth of all where another fifth is kept for the report


class Unthrottled:
    """Training that makes its steps without a pause, see `Throttle`."""

    stopping = False

    def throttle(self, seconds: float) -> None:
        """Continue at once after a step."""


@dataclass
class ComparedData:
    """What is trained on to compare, see `RoundData`: rows without a holdout, from these parameters on."""

    learned: Window
    own: Weights

    def rows(self) -> Window:
        """Return the rows to train on."""
        return self.learned

    def measure(self, engine: Engine) -> Quality | None:  # noqa: ARG002
        """Return nothing: what was made is asked about other rows."""
        return None

    def parameters(self) -> Weights:
        """Return the present parameters."""
        return self.own

    def last_seq(self) -> int:
        """Newest position in label order."""
        return len(self.learned)


class SharedSetup:
    """A bundle of a classifier, and a recording `x` `(n, d)` with classes `y` `(n,)`."""

    def __init__(self, bundle: Bundle, schema: Schema, x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
        self.bundle, self.schema = bundle, schema
        self._x, self._y = x, y.astype(np.float32).reshape(-1, 1)
        self.task = LearningTask(TrainingConfig(), schema, bundle)
        self.engines = EngineFactory("portable", bundle)
        self._base = base_model(bundle, Description.of(bundle))

    def initial(self) -> dict[str, NDArray[np.float32]]:
        """The weights that the bundle begins with."""
        return self._base.parameters()

    def window(self, rows: NDArray[np.int64]) -> Window:
        """Rows as the sample log would give them."""
        return Window(rows, rows, np.ascontiguousarray(self._x[rows]), np.ascontiguousarray(self._y[rows]))

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """Rows as labelled samples of a device whose log is empty, one a second."""
        n = len(rows)
        offsets = np.arange(1, n + 1)
        labels: list[LabelValue | None] = self._y[rows, 0].astype(np.int64).tolist()
        ts = offsets.astype(np.float64)
        return Batch(offsets, [""] * n, ts, ts, self._x[rows], labels, [None] * n, [None] * n)

    def configuration(self, name: str, folder: Path, seed: int) -> tuple[Config, FleetConfig]:
        """The configuration of a device: defaults, but a fifth of its rows judge, as they are few."""
        config = Config.model_validate({
            "device": {"id": name},
            "storage": {"dir": folder, "durability": "relaxed"},
            "stream": {
                "features": self._x.shape[1], "task": "classify", "classes": len(self.schema.classes)
            },
            "model": {"bundle": self.bundle.path},
            "training": {"engine": "portable", "threads": 1, "seed": seed},
            "gate": {"holdout": HOLDOUT},
        })  # fmt: skip
        fleet = FleetConfig(name=FLEET, resend=RESEND, min_new_samples=0)
        return config.model_copy(update={"fleet": fleet}), fleet

    def evaluate(self, weights: Weights, scratch: Path, *parts: NDArray[np.int64]) -> list[Quality]:
        """Mean loss and accuracy of weights on each part, NaN without rows; `scratch` is overwritten."""
        scratch.write_bytes(bytes(self._base.with_parameters(weights)))
        return self.judge(InferenceModel(scratch, threads=1), *parts)

    def judge(self, model: Model, *parts: NDArray[np.int64]) -> list[Quality]:
        """Mean loss and accuracy of a model on each part of the rows, NaN without rows."""
        window = self.window(np.concatenate(parts))
        raw = model.predict(window.x)
        lost = _surprise(probabilities(raw), window.y)
        wrong = errors(self.schema, answers(self.schema, raw), window.y)
        ends = np.cumsum([len(part) for part in parts])[:-1]
        return [
            Quality(float(a.mean()), 1.0 - float(b.mean())) if len(a) else Quality(nan, nan)
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
        data = ComparedData(self.window(rows), weights)
        alone = RoundTrainer(self.task, self.engines, data, Unthrottled())
        made = alone.train_round({}, free, CarriedState(), rng=np.random.default_rng(seed))
        return {**weights, **made.carried.personal}

    def statistics(
        self, rows: NDArray[np.int64], config: RoundSettings, weights: Weights
    ) -> NetworkStatistics:
        """The sums of rows for the last layers of the network with these weights."""
        data = ComparedData(self.window(rows), weights)
        alone = RoundTrainer(self.task, self.engines, data, Unthrottled())
        return alone.head_statistics(weights, config)


def _surprise(probable: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cross-entropy `(n,)` of probabilities `(n, c)` for classes `(n, 1)`; NaN counts as 0."""
    right = probable[np.arange(len(y)), y[:, 0].astype(np.int64)].astype(np.float64)
    return np.nan_to_num(-np.log(np.maximum(right, 1e-9)))
