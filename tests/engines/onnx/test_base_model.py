"""Parameters written into their places in a model, also in the forms of earlier bundles."""

from __future__ import annotations

import numpy as np
import pytest

from edged.domain.bundle_contents import Slot


@pytest.mark.parametrize(
    ("told", "kind"), [({}, np.int8), ({"zero": 128}, np.uint8)], ids=["signed", "unsigned"]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_integers_stand_for_the_values_whatever_their_zero(
    told: dict[str, int], kind: type, transposed: bool
) -> None:
    value = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)
    slot = Slot.from_json({"name": "w", "offset": 3, "shape": [4, 6], "scale": 30, "axis": 1, **told,
                           "transposed": transposed})  # fmt: skip
    content = bytearray(range(60))
    slot.write(content, value)
    scale = np.frombuffer(content, "<f4", 6, 30)
    whole = np.frombuffer(content, kind, 24, 3).astype(np.int16) - slot.zero
    laid = whole.reshape(6, 4).T if transposed else whole.reshape(4, 6)
    np.testing.assert_allclose(laid * scale, value, atol=float(scale.max()) / 2 * 1.001)
    untouched = [*range(3), *range(27, 30), *range(54, 60)]
    assert [content[position] for position in untouched] == untouched
