"""Whether a network still says what it said before a build brought it into its own form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from edged.bundles.graph.edit import leave_only
from edged.bundles.source.axes import batch_first
from edged.bundles.source.training_mode import in_inference_form, inference_form
from edged.engines.runtime import ort
from edged.errors import BundleError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Of the largest output: more than another order of sums makes.
TOLERANCE = 1e-3
ROWS = 4
_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
# Sizes that are open are no numbers to multiply.
_ERRORS: tuple[type[Exception], ...] = (*ort.ERRORS, ValueError, TypeError)


def check_outputs(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    rows: NDArray[np.float32] | None,
    add_note: Callable[[str], None],
) -> None:
    """Compare the outputs of two forms of a network, on recorded `rows` `(n, ...)` or on random ones.

    Dropout is left out and batch normalisation uses its running statistics in both; the batch is the first
    axis, and an output of the second form may be inside the first one. Where this onnxruntime cannot run
    the given file, `add_note` receives a line about that.

    Raises BundleError when an output differs by more than a thousandth of the largest, naming it.
    """
    in_inference_form(before.graph)
    batch_first(before, lambda _: None)
    names = [str(value.name) for value in after.graph.output]
    del before.graph.output[:]
    before.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    leave_only(before.graph, names)
    try:
        first, second = (
            ort.session(model.SerializeToString())
            for model in (inference_form(before), inference_form(after))
        )
        numbers = _numbers(first.get_inputs(), rows)
        runs = (form.run(names, _given(form.get_inputs(), numbers)) for form in (first, second))
        pairs = list(zip(names, *runs, strict=True))
    except _ERRORS as problem:
        add_note(f"not compared with the given file, which cannot be run here: {ort.one_line(problem, 120)}")
        return
    for name, old, new in pairs:
        difference = float(np.abs(new - old).max())
        if not difference <= TOLERANCE * max(1e-6, float(np.abs(old).max())):
            raise BundleError(
                f"the output {name!r} would differ by {difference:.3g} from what the given network says",
                where=str(before.graph.name),
                remedy="export it again with opset_version=17, and report this",
            )


def _numbers(inputs: Sequence[Any], rows: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """Rows of all inputs of a session side by side `(n, width)`; 0 for whole numbers, which are places."""
    widths = [math.prod(value.shape[1:]) for value in inputs]
    first = inputs[0].shape[0]
    count = first if isinstance(first, int) else ROWS
    if rows is not None:
        return np.resize(rows.reshape(len(rows), -1), (count, sum(widths)))
    found = np.random.default_rng(0).standard_normal((count, sum(widths))).astype(np.float32)
    for value, end in zip(inputs, accumulate(widths), strict=True):
        if "int" in value.type:
            found[:, end - math.prod(value.shape[1:]) : end] = 0
    return found


def _given(inputs: Sequence[Any], numbers: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """The rows as each input takes them."""
    given, start = {}, 0
    for value in inputs:
        end = start + math.prod(value.shape[1:])
        part = numbers[:, start:end].reshape(len(numbers), *value.shape[1:])
        given[value.name], start = part.astype(_TYPES[value.type]), end
    return given
