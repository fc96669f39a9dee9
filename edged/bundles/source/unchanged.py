"""Whether a network still says what it said before a build brought it into its own form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.bundles.source.training_mode import in_inference_form, inference_form
from edged.engines.runtime import ort
from edged.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx
    from numpy.typing import NDArray

# Of the largest output: more than another order of sums makes.
TOLERANCE = 1e-3
ROWS = 4
_ERRORS: tuple[type[Exception], ...] = (*ort.ERRORS, ValueError)


def check_outputs(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    rows: NDArray[np.float32] | None,
    note: Callable[[str], None],
) -> None:
    """Compare the outputs of two forms of a network, on recorded `rows` `(n, ...)` or on random ones.

    Dropout is left out and batch normalisation uses its running statistics in both. Where this onnxruntime
    cannot run the given file, `note` is told so.

    Raises
    ------
    BundleError
        When an output differs by more than a thousandth of the largest, naming it.
    """
    in_inference_form(before.graph)
    names = [str(value.name) for value in after.graph.output]
    try:
        first, second = (
            ort.session(model.SerializeToString())
            for model in (inference_form(before), inference_form(after))
        )
        given = {value.name: _rows(value, rows) for value in first.get_inputs()}
        pairs = zip(names, first.run(names, given), second.run(names, given), strict=True)
    except _ERRORS as problem:
        note(f"not compared with the given file, which cannot be run here: {ort.one_line(problem, 120)}")
        return
    for name, old, new in pairs:
        difference = float(np.abs(new - old).max())
        if not difference <= TOLERANCE * max(1e-6, float(np.abs(old).max())):
            raise BundleError(
                f"the output {name!r} would differ by {difference:.3g} from what the given network says",
                where=str(before.graph.name),
                remedy="export it again with opset_version=17, and report this",
            )


def _rows(value: object, rows: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """Rows for an input of a session, as many as it takes; ValueError where its other sizes are open."""
    first, *sizes = value.shape  # type: ignore[attr-defined]
    count = first if isinstance(first, int) else ROWS
    if not all(isinstance(size, int) for size in sizes):
        raise ValueError(f"{value.name!r} has sizes that vary")  # type: ignore[attr-defined]
    if rows is not None:
        return np.resize(rows.reshape(len(rows), -1), (count, int(np.prod(sizes)))).reshape(count, *sizes)
    return np.random.default_rng(0).standard_normal((count, *sizes)).astype(np.float32)
