"""Layers that stay with a device, and those that a fleet shares.

Personal layers are trained with the others and never sent (Arivazhagan et al., "Federated learning with
personalization layers", 2019). With the statistics of inputs among them each device keeps its own scale, as
Li et al. do for batch normalisation ("FedBN", 2021).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from edged.errors import RefusedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Weights = Mapping[str, NDArray[np.float32]]

WHERE = "model of the fleet"


def is_personal(name: str, patterns: Iterable[str]) -> bool:
    """Whether a parameter stays on the device.

    >>> is_personal("head.weight", ["head.*"]), is_personal("body.weight", ["head.*"])
    (True, False)
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def only(weights: Weights, patterns: Collection[str]) -> dict[str, NDArray[np.float32]]:
    """Return the personal layers among `weights`."""
    return {name: value for name, value in weights.items() if is_personal(name, patterns)}


def fitting(
    shared: Weights, own: Weights, trained: Collection[str], patterns: Collection[str]
) -> dict[str, NDArray[np.float32]]:
    """All parameters of a device with those that the fleet shares in their place.

    `shared`: what came; personal ones among them are left aside: the device has its own. `own`: all
    parameters of the device. `trained`: names of those that are trained: unless personal, none of them may be
    missing. `patterns` match the names of personal layers. Raises RefusedError when names or shapes are not
    those of this device's model, or a number is not finite.
    """
    taken = {name: value for name, value in shared.items() if not is_personal(name, patterns)}
    for name, value in taken.items():
        if name not in own:
            raise RefusedError(f"this device's model has no parameter {name}", where=WHERE)
        if value.shape != own[name].shape:
            raise RefusedError(
                f"parameter {name} has shape {value.shape}, here {own[name].shape}", where=WHERE
            )
        if not np.isfinite(value).all():
            raise RefusedError(f"parameter {name} holds numbers that are not finite", where=WHERE)
    missing = {name for name in trained if not is_personal(name, patterns)} - taken.keys()
    if missing:
        raise RefusedError(f"missing parameter {min(missing)}", where=WHERE)
    return {**own, **taken}
