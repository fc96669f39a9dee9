"""Optimizers by name, with their constants, and which of them the native engine has too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edged.domain.training.optimizers import COMMON, DEFAULTS, OPTIMIZERS
from edged.engines.portable.optimizer import OptimizerInputs
from edged.errors import ConfigError

_FLAGS = ("bias_correction", "nesterov")
_KINDS = {"sgd": ("value",), "sgd_momentum": ("value", "momentum")}


@dataclass(frozen=True)
class Optimizer:
    """What an update does. `Optimizer.of` fills in the defaults of each and refuses what does not fit.

    `adamw`
        AdamW (Loshchilov and Hutter 2019, algorithm 2) as onnxruntime's generator writes it, which is
        Hugging Face's form: ε is added to √v before the bias correction, the decay comes after the move.
    `adamw_pytorch`
        The same as `torch.optim.AdamW`: ε is added after the bias correction, the decay comes first.
    `sgd`
        θ − ηg; a weight decay adds wθ to the gradient, as `torch.optim.SGD`.
    `sgd_momentum`
        b ← μb + (1 − τ)g, θ − ηb, as `torch.optim.SGD`: the dampening τ spares the first gradient, and with
        `nesterov` (Sutskever et al. 2013) it is θ − η(g + μb).

    Without `bias_correction` the moments of `adamw` count as they are, from the first update on.

    `clip_norm` limits the norm of the whole gradient before all that; 0 does not.
    """

    name: str
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    momentum: float = 0.0
    beta1: float = 0.0
    beta2: float = 0.0
    epsilon: float = 0.0
    dampening: float = 0.0
    bias_correction: bool = True
    nesterov: bool = False

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
        values: dict[str, Any] = {**DEFAULTS[name], **given}
        made = cls(name, **{key: bool(v) if key in _FLAGS else v for key, v in values.items()})
        if made.nesterov and (made.dampening or not made.momentum):
            raise ConfigError("nesterov needs a momentum, and no dampening", where="nesterov")
        return made

    @property
    def adaptive(self) -> bool:
        """Whether it is a form of AdamW."""
        return self.name.startswith("adamw")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The state tensors of a parameter: its value and its moments."""
        return _KINDS.get(self.name, ("value", "first", "second"))

    @property
    def alpha(self) -> float:
        """β₁ in single precision, as the native engine has it."""
        return float(np.float32(self.beta1))

    @property
    def beta(self) -> float:
        """β₂ in single precision: 1 − β₂ differs from double precision in the fifth digit."""
        return float(np.float32(self.beta2))

    @property
    def native_lack(self) -> str | None:
        """What of it onnxruntime-training has not; None when it has all."""
        if self.name == "sgd_momentum":
            return "momentum"
        return "SGD with weight decay" if self.name == "sgd" and self.weight_decay else None

    def describe(self) -> OptimizerInputs:
        """What `bundle.json` says about it. `scaled`: see `updates.adamw`."""
        return OptimizerInputs(
            **vars(self), kinds=self.kinds, alpha=self.alpha, beta=self.beta,
            correct_bias=self.bias_correction, scaled=self.adaptive,
        )  # fmt: skip


def _check(name: str, option: str, value: float) -> None:
    if option not in (*DEFAULTS[name], *COMMON):
        known = ", ".join([*DEFAULTS[name], *COMMON])
        raise ConfigError(f"{name} has no {option}", where=option, remedy=f"it has {known}")
    if option in ("beta1", "beta2", "momentum", "dampening"):
        good, wanted = 0 <= value < 1, "from 0 up to, not including, 1"
    else:
        good, wanted = 0 <= value < np.inf, "0 or more"
    if option in ("beta2", "epsilon") and value == 0:
        good, wanted = False, "above 0"
    if not good:
        raise ConfigError(f"{option} {value} is out of range", where=option, remedy=f"it must be {wanted}")
