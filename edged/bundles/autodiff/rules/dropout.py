"""Dropout, with a mask from the noise of the step (Srivastava et al. 2014)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, numpy_helper

from edged.bundles.autodiff.registry import backward, forward
from edged.bundles.autodiff.shapes import row_elements
from edged.bundles.autodiff.tape import BATCH, Adjoint, untrainable

if TYPE_CHECKING:
    import onnx

    from edged.bundles.autodiff.registry import Adjoints
    from edged.bundles.autodiff.tape import Tape

# Of the ONNX operator, where no ratio is given.
RATIO = 0.5


@forward("Dropout")
def dropout_forward(node: onnx.NodeProto, t: Tape) -> None:
    """x·k with k = 1/(1 − r) where the noise is not below the ratio r, and 0 elsewhere.

    Outside of training, where the third input is left out, it is the identity. The noise belongs to the
    seed and the number of the update, so the same step draws the same mask again. It has one row for each
    sample; where the tensor has another form, as in a recurrent network, it is reshaped.
    """
    x, ratio, training = (*node.input, "", "")[:3]
    mask = node.output[1] if len(node.output) > 1 else ""
    if not training or not t.known(training, node, "input that says whether it is training"):
        t.add("Identity", [x], node.output[0])
        if mask:
            yes = numpy_helper.from_array(np.ones(1, np.bool_))
            t.add("ConstantOfShape", [t.shape_of(x, node)], mask, value=yes)
        return
    dims = t.dims(x, node)
    share = RATIO if not ratio else float(t.known(ratio, node, "ratio"))
    if not 0 <= share < 1:
        raise untrainable(node, "its ratio must be a number from 0 to less than 1")
    row = row_elements(dims)
    if row is None:
        raise untrainable(node, "what it is applied to does not grow with the batch")
    noise = t.noise(row)
    if dims[0] != BATCH or len(dims) != 2:
        noise = t.like(noise, x, node)
    kept = t.add("Cast", [t.add("GreaterOrEqual", [noise, t.number(share)], mask)], to=TensorProto.FLOAT)
    factor = t.saved[node.output[0]] = t.add("Mul", [kept, t.number(1 / (1 - share))])
    t.add("Mul", [x, factor], node.output[0])


@backward("Dropout")
def dropout(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ·k with the factors k of the forward pass."""
    factor = t.saved.get(node.output[0])
    return [t.times(gradients[0], factor, t.dims(node.input[0], node)) if factor else gradients[0]]
