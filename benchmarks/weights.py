"""What an update of weights costs on the line, and what of the model's quality arrives with it.

The standard network of one layer of 256 learns `hapt_feat` (72 features, 12 activities), user after user, in
rounds of 400 rows; after each round an update goes out in every form, and a receiver makes a model of it.
Rows that nobody learns from, 15 % of all users, judge both. `ratio` is the size of the largest update,
compressed and with its safetensors header, by 4 bytes a parameter; `loss_points` is the sender's accuracy
less the receiver's in points, the mean of all rounds; `worst` that of the worst round.

`python benchmarks/weights.py --data DIR [--rounds R] [--seed S] [--json] [--out FILE]`
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from output import finish, options

from edged.bundles.build import build
from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.domain.protocols import LearningRate
from edged.domain.stream.running_statistics import scale_of
from edged.domain.training.weight_deltas import Coding, changes, code, decode
from edged.engines.portable.engine import PortableEngine
from edged.mqtt import update_encoding, weight_encoding

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle

Weights = dict[str, Any]
ROWS, STEPS, BATCH, RATE = 400, 100, 32, 1e-3


@dataclass
class Form:
    """One way to send updates, and how it has done; `base` None sends all weights each time."""

    coding: Coding
    base: str | None
    held: Weights = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def send(self, current: Weights, exact: tuple[str, ...]) -> Weights:
        """What the receiver holds after the update."""
        if self.base is None:
            plain = self.coding == Coding()
            coded = code(current, self.coding, exact)
            self.sizes.append(len(weight_encoding.pack(current) if plain else update_encoding.pack(coded)))
            return decode(coded)
        coded, held = changes(current, self.held, self.coding, exact)
        self.sizes.append(len(update_encoding.pack(coded)))
        if self.base == "last":
            self.held = held
        return held


FORMS = [
    (Coding(), None), (Coding("float16"), None), (Coding("int8"), None),
    (Coding(), "last"), (Coding("float16"), "last"), (Coding("int8"), "last"),
    (Coding("int8", step=0.25), "last"), (Coding("int8", step=0.5), "last"),
    (Coding("int8", step=1.0), "last"),
    (Coding("int8"), "bundle"), (Coding("int8", step=0.5), "bundle"),
]  # fmt: skip


def read(folder: Path, seed: int) -> tuple[Any, Any, Any, Any]:
    """Rows to learn from, user after user, and rows that nobody learns from."""
    with np.load(folder / "hapt_feat.npz", allow_pickle=False) as data:
        order = np.argsort(data["user"], kind="stable")
        x, y = data["X"][order].astype(np.float32), data["y"][order].astype(np.int64)
    apart = np.random.default_rng(seed).random(len(x)) < 0.15
    return x[~apart], y[~apart], x[apart], y[apart]


class Learner:
    """The sender's model, and a second engine that holds the receiver's."""

    def __init__(self, bundle: Bundle, seed: int) -> None:
        self.sender, self.receiver = PortableEngine(bundle), PortableEngine(bundle)
        self.sender.begin(LearningRate(RATE))
        self._rng = np.random.default_rng(seed)

    def learn(self, x: Any, y: Any, first: int) -> None:
        """A round: half of each batch from the newest rows, half from all before."""
        for _ in range(STEPS):
            newest = self._rng.integers(first, len(x), BATCH // 2)
            rows = np.concatenate([newest, self._rng.integers(0, len(x), BATCH // 2)])
            self.sender.step(x[rows], y[rows])

    def accuracy(self, values: Weights, x: Any, y: Any, scratch: Path) -> float:
        """Of a model with these weights, in percent."""
        from edged.engines.inference import InferenceModel

        self.receiver.set_parameters(values)
        self.receiver.export(scratch)
        return 100.0 * float(np.mean(InferenceModel(scratch).predict(x).argmax(axis=1) == y))


def measure(folder: Path, data: Path, rounds: int, seed: int) -> list[dict[str, Any]]:
    """One row a form."""
    x, y, test_x, test_y = read(data, seed)
    pretrain = len(x) // 10
    model = mlp(x.shape[1], int(y.max()) + 1, (256,), seed=seed)
    statistics = Statistics(*scale_of(x[:pretrain]))
    bundle = build(model, folder / "bundle", loss="cross_entropy", standardise=statistics, engine="portable")
    learner = Learner(bundle, seed)
    start = learner.sender.parameters()
    learner.learn(x[:pretrain], y[:pretrain], 0)
    first = learner.sender.parameters()
    forms = [Form(coding, base, start if base == "bundle" else first) for coding, base in FORMS]
    plain = 4 * sum(value.size for value in start.values())
    for number in range(rounds):
        known = min(len(x), pretrain + (number + 1) * ROWS)
        learner.learn(x[:known], y[:known], known - ROWS)
        current = learner.sender.parameters()
        own = learner.accuracy(current, test_x, test_y, folder / "model.onnx")
        for form in forms:
            received = form.send(current, bundle.frozen)
            form.losses.append(own - learner.accuracy(received, test_x, test_y, folder / "model.onnx"))
    return [row(form, plain, own) for form in forms]


def row(form: Form, plain: int, own: float) -> dict[str, Any]:
    """What is told of a form."""
    return {
        "mode": "full" if form.base is None else "delta",
        "base": form.base,
        "dtype": form.coding.dtype,
        "step": form.coding.step,
        "bytes": max(form.sizes),
        "ratio": round(max(form.sizes) / plain, 4),
        "fp32_bytes": plain,
        "loss_points": round(float(np.mean(form.losses)), 2),
        "worst": round(max(form.losses), 2),
        "accuracy": round(own, 2),
    }


def main() -> int:
    """Entry point."""
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory with hapt_feat.npz")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), args.data, args.rounds, args.seed)
    finish("weights", rows, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
