"""The optimizers' updates in standard operators, and the clipping before them.

Whatever changes from update to update comes in as a scalar: see `Scalars`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edged.bundles.autodiff.tape import Tape
from edged.bundles.step_graph.training_graph import ParameterGroup
from edged.domain.training.optimizers import BETA1, BETA2, Optimizer

# Inputs of the step graph, float32 scalars that the engine computes for every update.
SIZE, KEEP = "step.size", "step.keep"
ROOT_SLOPE, ROOT_OFFSET = "step.root_slope", "step.root_offset"
CEILING, SPARE = "step.ceiling", "step.spare"


def scalars(optimizer: Optimizer) -> dict[str, str]:
    """The scalars an optimizer reads: what they are, and the inputs that take them."""
    if optimizer.adaptive:
        found = {"slope": ROOT_SLOPE, "offset": ROOT_OFFSET}
        if optimizer.weight_decay:
            found["keep"] = KEEP
    else:
        found = {"size": SIZE}
    if optimizer.clip_norm:
        found |= {"ceiling": CEILING, "spare": SPARE}
    return found


def clipped(gradients: Sequence[str], squares: str, to: Tape) -> list[str]:
    """Gradients times min(1, c/(n + 10⁻⁶)), where n is the norm of them all together.

    As `torch.nn.utils.clip_grad_norm_` and onnxruntime's InplaceClipGradNorm; Pascanu et al. 2013.
    """
    norm = to.add("Add", [to.add("Sqrt", [squares]), SPARE])
    factor = to.add("Min", [to.add("Div", [CEILING, norm]), to.number(1)])
    return [to.add("Mul", [gradient, factor]) for gradient in gradients]


def shape(group: ParameterGroup, kind: str, optimizer: Optimizer) -> tuple[int, ...]:
    """Shape of a state tensor: one row for Gemm, that of one channel for BatchNormalization (see `adamw`)."""
    return (1, *group.shape) if optimizer.adaptive and kind in {"value", "second"} else group.shape


def update(group: ParameterGroup, gradient: str, optimizer: Optimizer, to: Tape) -> None:
    """Write the update of a group: its new state tensors."""
    (adamw if optimizer.adaptive else sgd)(group, gradient, optimizer, to)


def decayed(moment: str, by: float, gradient: str, to: Tape, name: str = "") -> str:
    """The moment `(1, n)` times a number, and a gradient added: what Gemm does faster than Mul and Add."""
    return to.add("Gemm", [to.constant(np.full((1, 1), by, np.float32)), moment, gradient], name)


def sgd(group: ParameterGroup, gradient: str, optimizer: Optimizer, to: Tape) -> None:
    """θ − η·b, where b is the gradient or, with momentum, μb + g; a weight decay w adds wθ to g.

    The form of `torch.optim.SGD`; without momentum and decay also onnxruntime's SGDOptimizerV2.
    """
    value = group.tensor("value")
    if optimizer.weight_decay:
        gradient = to.add("Add", [gradient, to.add("Mul", [value, to.number(optimizer.weight_decay)])])
    if "momentum" in optimizer.kinds:
        new = group.tensor("new_momentum")
        gradient = decayed(group.tensor("momentum"), optimizer.momentum, gradient, to, new)
    to.add("Sub", [value, to.add("Mul", [gradient, SIZE])], group.tensor("new_value"))


def adamw(group: ParameterGroup, gradient: str, optimizer: Optimizer, to: Tape) -> None:
    """AdamW (Loshchilov and Hutter 2019, algorithm 2) on scaled moments.

    The gradient that comes in is s·g with s = β₂^(−t/2), for the engine multiplies the weights of the
    rows with s. Kept are M = s·m/(1 − β₁) and V = s²·v/(1 − β₂), so that

        M' = β₁/√β₂·M + s·g,   V' = V + (s·g)²,   θ' = θ − M'/(√V'/a + e/a)

    which is four passes over the parameters less than the usual recurrences. a holds the learning rate,
    (1 − β₁)/√(1 − β₂) and the bias corrections; e holds ε, s and, in PyTorch's form, the bias correction
    of v. Now and then the engine divides s out of both moments, long before it grows too large.

    The sum below the fraction is a BatchNormalization of one channel with mean 0 and variance 1: the one
    standard operator that multiplies and adds in one pass. Mul and Add take two.
    """
    value, first, second = (group.tensor(kind) for kind in optimizer.kinds)
    new_value, new_first, new_second = (group.tensor(f"new_{kind}") for kind in optimizer.kinds)
    to.add("Add", [second, to.add("Mul", [gradient, gradient])], new_second)
    decayed(first, BETA1 / BETA2**0.5, gradient, to, new_first)
    zero, one = (to.constant(np.full(1, value, np.float32)) for value in (0, 1))
    affine = [to.add("Sqrt", [new_second]), ROOT_SLOPE, ROOT_OFFSET, zero, one]
    move = to.add("Div", [new_first, to.add("BatchNormalization", affine, epsilon=0.0)])
    if not optimizer.weight_decay:
        to.add("Sub", [value, move], new_value)
    elif optimizer.name == "adamw_pytorch":
        to.add("Sub", [to.add("Mul", [value, KEEP]), move], new_value)
    else:
        to.add("Mul", [to.add("Sub", [value, move]), KEEP], new_value)
