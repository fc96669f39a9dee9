"""Layers that stay with a device."""

from __future__ import annotations

import numpy as np
import pytest

from edged.domain.federated.personal_layers import fitting, only
from edged.errors import RefusedError

OWN = {
    "body.w": np.zeros((2, 3), np.float32),
    "head.w": np.full((3,), 7.0, np.float32),
    "mean": np.full((2,), 5.0, np.float32),
}
TRAINED = ("body.w", "head.w")
BODY = {"body.w": np.ones((2, 3), np.float32)}


def test_personal_layers_stay_whatever_comes() -> None:
    came = {**BODY, "head.w": np.zeros((3,), np.float32)}
    made = fitting(came, OWN, TRAINED, ["head.*"])
    assert made["body.w"].sum() == 6.0
    assert np.array_equal(made["head.w"], OWN["head.w"])
    assert np.array_equal(made["mean"], OWN["mean"])
    assert list(only(OWN, ["head.*", "mean"])) == ["head.w", "mean"]


@pytest.mark.parametrize(
    ("came", "message"),
    [
        ({"head.w": OWN["head.w"]}, "missing parameter body.w"),
        (BODY, "missing parameter head.w"),
        ({**OWN, "tail.w": OWN["mean"]}, "no parameter tail.w"),
        ({**OWN, "mean": np.zeros((3,), np.float32)}, "has shape"),
        ({**OWN, "body.w": np.full((2, 3), np.nan, np.float32)}, "not finite"),
    ],
)
def test_what_does_not_fit_is_refused(came: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        fitting(came, OWN, TRAINED, [])
