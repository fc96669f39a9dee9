"""The optimizers by name, what each takes, and what it has when nothing is said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_ADAM = {"beta1": 0.9, "beta2": 0.999}
DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "adamw": {**_ADAM, "epsilon": 1e-6, "weight_decay": 0.0, "bias_correction": True},
    "adamw_pytorch": {**_ADAM, "epsilon": 1e-8, "weight_decay": 0.01},
    "sgd": {"weight_decay": 0.0},
    "sgd_momentum": {"weight_decay": 0.0, "momentum": 0.9, "dampening": 0.0, "nesterov": False},
}
OPTIMIZERS = tuple(DEFAULTS)
# What every optimizer takes besides.
COMMON = ("clip_norm",)
OPTIONS = tuple(sorted({option for own in DEFAULTS.values() for option in own}.union(COMMON)))


def misfit(optimizers: Iterable[str], options: Mapping[str, float | None]) -> str:
    """The first of the options that are not None which one of the optimizers has not; else nothing.

    >>> misfit(["adamw", "sgd"], {"momentum": None, "epsilon": 1e-7})
    'sgd has no epsilon: it has clip_norm, weight_decay'
    """
    for name in optimizers:
        for option, value in options.items():
            if value is not None and option not in DEFAULTS[name] and option not in COMMON:
                return f"{name} has no {option}: it has {', '.join(sorted([*DEFAULTS[name], *COMMON]))}"
    return ""
