"""Rules, one file for each family of operators; importing this package registers them.

Notation in the docstrings: y is the result of an operator, x, a, b, ... are its inputs, and ḡ is the adjoint
of y, the gradient of the loss with respect to it. Definitions of the operators are those of the ONNX operator
specification (https://onnx.ai/onnx/operators/).
"""

from edged.bundles.autodiff.rules import (
    activations,
    convolution,
    elementwise,
    losses,
    normalisation,
    pooling,
    products,
    recurrent_layers,
    reductions,
    shaping,
)

__all__ = [
    "activations", "convolution", "elementwise", "losses", "normalisation", "pooling", "products",
    "recurrent_layers", "reductions", "shaping",
]  # fmt: skip
