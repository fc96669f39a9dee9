"""The optimizers by name, what each takes, and the numbers that their updates need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from edged.domain.arrays import Doubles
from edged.domain.training.message import Message
from edged.errors import ConfigError

DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "adamw": {"weight_decay": 0.0},
    "adamw_pytorch": {"weight_decay": 0.01},
    "sgd": {"weight_decay": 0.0},
    "sgd_momentum": {"weight_decay": 0.0, "momentum": 0.9},
}
OPTIMIZERS = tuple(DEFAULTS)
# What every optimizer takes besides.
COMMON = ("clip_norm",)
OPTIONS = tuple(sorted({option for own in DEFAULTS.values() for option in own}.union(COMMON)))
# Of AdamW, in single precision as onnxruntime-training has them: 1 − β₂ differs in the fifth digit.
BETA1, BETA2 = float(np.float32(0.9)), float(np.float32(0.999))
EPSILON = {"adamw": 1e-6, "adamw_pytorch": 1e-8}
ROOT = math.sqrt(1 - BETA2)

# Scaled gradients are at most so much larger than the true ones; single precision has room for more.
LARGEST_SCALE = 1024.0
# Updates after which AdamW's moments are brought back to their true scale.
PERIOD = 1 + int(2 * math.log(LARGEST_SCALE) / -math.log(BETA2))
# Updates after which what is left of moments without gradients is taken for 0.
SWEEP = 128
SMALLEST_SIZE = 1e-30


def misfit(optimizers: Iterable[str], options: Mapping[str, float | None]) -> str:
    """The first of the options that are not None which one of the optimizers has not; else nothing.

    >>> misfit(["adamw", "sgd"], {"momentum": 0.5})
    'adamw has no momentum: it has clip_norm, weight_decay'
    """
    for name in optimizers:
        for option, value in options.items():
            if value is not None and option not in DEFAULTS[name] and option not in COMMON:
                return f"{name} has no {option}: it has {', '.join(sorted([*DEFAULTS[name], *COMMON]))}"
    return ""


@dataclass(frozen=True)
class Optimizer(Message):
    """What an update does. `Optimizer.of` fills in the defaults of each and refuses what does not fit.

    `adamw`
        AdamW (Loshchilov and Hutter 2019, algorithm 2) as onnxruntime's generator writes it, which is
        Hugging Face's form: ε is added to √v before the bias correction, the decay comes after the move.
        β₁ is 0.9, β₂ 0.999, ε 10⁻⁶.
    `adamw_pytorch`
        The same as `torch.optim.AdamW`: ε, 10⁻⁸, is added after the bias correction, the decay comes first.
    `sgd`
        θ − ηg; a weight decay adds wθ to the gradient, as `torch.optim.SGD`.
    `sgd_momentum`
        b ← μb + g, θ − ηb, as `torch.optim.SGD`.

    `clip_norm` limits the norm of the whole gradient before all that; 0 does not.

    In the step graph AdamW's moments are kept without the factors 1 − β, and without the decay of the second
    one: gradients come to it larger by √β₂ with every update, so that the older ones count less beside them.
    After `PERIOD` updates the moments are brought back.
    """

    name: str
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    momentum: float = 0.0

    @classmethod
    def of(cls, name: str, **options: float | None) -> Optimizer:
        """The optimizer `name`; options that are None keep its defaults.

        Raises ConfigError when there is no such optimizer, it has no such option, or a value is out of range.

        Examples
        --------
        >>> Optimizer.of("adamw_pytorch", weight_decay=0.1).weight_decay
        0.1
        """
        if name not in DEFAULTS:
            known = ", ".join(OPTIMIZERS)
            raise ConfigError(f"there is no optimizer {name!r}", where="optimizer", remedy=f"one of {known}")
        given = {key: float(value) for key, value in options.items() if value is not None}
        for key, value in given.items():
            _check(name, key, value)
        return cls(name, **{**DEFAULTS[name], **given})

    @property
    def adaptive(self) -> bool:
        """Whether it is a form of AdamW."""
        return self.name in EPSILON

    @property
    def kinds(self) -> tuple[str, ...]:
        """The state tensors of a parameter: its value and its moments."""
        if self.adaptive:
            return ("value", "first", "second")
        return ("value", "momentum") if self.name == "sgd_momentum" else ("value",)

    @property
    def native_lack(self) -> str | None:
        """What of it onnxruntime-training has not; None when it has all."""
        if self.name == "sgd_momentum":
            return "momentum"
        return "SGD with weight decay" if self.name == "sgd" and self.weight_decay else None

    # ---- the numbers of its updates ----------------------------------------------------------

    def tended_after(self, updates: int) -> int:
        """The next number of updates at which moments are swept or brought back to their true scale."""
        every = (SWEEP, PERIOD) if self.adaptive else (SWEEP,)
        return min((updates // each + 1) * each for each in every)

    def scales(self, updates: Doubles) -> Doubles:
        """What the gradient of each update is multiplied with, `(n,)`; updates are counted from 1."""
        if not self.adaptive:
            return np.ones_like(updates)
        return BETA2 ** (-((updates - 1) % PERIOD) / 2)

    def scalars(self, rates: Doubles, updates: Doubles) -> dict[str, Doubles]:
        """What changes from update to update, each `(n,)`; `updates` `(n,)` are counted from 1.

        `size`
            What the graph multiplies a move with: the learning rate.
        `slope`, `offset`
            1/a and ε'/a for AdamW, which divides by the sum of both. a is the learning rate with the bias
            corrections and (1 − β₁)/√(1 − β₂), because the moments are kept without these factors; ε' is ε
            in the units of the root of the second moment, in PyTorch's form times its bias correction. An a
            of 0 counts as one that moves no weight by as much as its last digit.
        `keep`
            What the decay leaves of a weight.
        `ceiling`, `spare`
            Largest norm of the gradient, and what is added to the norm, both in the gradient's scale.
        """
        scale = self.scales(updates)
        values = {"size": rates}
        if self.adaptive:
            corrected = np.sqrt(1 - BETA2**updates)
            size = rates * ((1 - BETA1) / ROOT) * corrected / (1 - BETA1**updates)
            epsilon = scale * (EPSILON[self.name] / ROOT)
            if self.name == "adamw_pytorch":
                epsilon = epsilon * corrected
            values["slope"] = 1 / np.maximum(size, SMALLEST_SIZE)
            values["offset"] = epsilon * values["slope"]
            values["keep"] = 1 - rates * self.weight_decay
        if self.clip_norm:
            values["ceiling"], values["spare"] = scale * self.clip_norm, scale * 1e-6
        return values

    def renewal(self, updates: int) -> tuple[float, ...]:
        """What the moments must be multiplied with after so many updates; nothing most of the time."""
        if not self.adaptive or updates % PERIOD:
            return ()
        return BETA2 ** (PERIOD / 2), BETA2**PERIOD


def _check(name: str, option: str, value: float) -> None:
    if option not in (*DEFAULTS[name], *COMMON):
        known = ", ".join([*DEFAULTS[name], *COMMON])
        raise ConfigError(f"{name} has no {option}", where=option, remedy=f"it has {known}")
    good, wanted = 0 <= value < np.inf, "0 or more"
    if option == "momentum":
        good, wanted = 0 <= value < 1, "from 0 up to, not including, 1"
    if not good:
        raise ConfigError(f"{option} {value} is out of range", where=option, remedy=f"it must be {wanted}")
