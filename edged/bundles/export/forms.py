"""Further forms of a bundle's graphs: in ORT format, and quantised; with the places of the weights in them.

A device writes the weights that it has trained at those places, so each form is tried here with other weights
than its own before it is described.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from edged.bundles.export.int8 import Quantiser, left_in_float32, scale_name, whole_name
from edged.bundles.graph import onnxruntime_generator
from edged.bundles.graph.ort_format import SUFFIX, initializers, write_optimised
from edged.domain.bundle_contents import Slot, StoredForm
from edged.domain.model_files import FLOAT32, INT8, Form
from edged.engines.onnx.base_model import BaseModel
from edged.engines.onnx.fields import raw_offsets
from edged.engines.runtime import ort
from edged.errors import BundleError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.bundles.export.int8 import QuantisedWeights

BASE: dict[Form, str] = {FLOAT32: "inference_model.onnx", INT8: "inference_int8.onnx"}
GRAPHS = (onnxruntime_generator.TRAINING, onnxruntime_generator.EVALUATION, onnxruntime_generator.OPTIMIZER)
# The more of the work is done beforehand the better, as long as weights can still be replaced.
LEVELS = ("extended", "basic", "none")
ROWS = 8
# An input that rounds the other way changes what a quantised layer answers by a step.
TOLERANCES: dict[Form, float] = {FLOAT32: 1e-4, INT8: 0.05}


@dataclass(frozen=True)
class RequestedForms:
    """Which forms a bundle is to have besides the plain ONNX files."""

    ort_format: bool = False
    int8: bool = False

    def __bool__(self) -> bool:
        return self.ort_format or self.int8


def add_forms(
    staged: Path,
    names: Sequence[str],
    wanted: RequestedForms,
    files: Sequence[str],
    add_note: Callable[[str], None] | None = None,
) -> tuple[Mapping[str, StoredForm] | None, list[str]]:
    """Write the wanted forms into the bundle being made.

    Parameters
    ----------
    staged
        The directory; the inference model lies in it, with raw parameters.
    names
        Parameters of the model.
    wanted
        Which forms.
    files
        The files that the bundle has so far.
    add_note
        Receives one line about what could not be quantised.

    Returns
    -------
    Their description for `bundle.json` (None without one), and the files that were added.

    Raises
    ------
    BundleError
        When the graph cannot be had in this form.
    """
    forms: dict[str, StoredForm] = {}
    added: list[str] = []
    if wanted.int8:
        layers = _quantise(staged, names, add_note)
        forms[INT8] = _place(staged, INT8, names, layers, ort_format=wanted.ort_format)
        added.append(forms[INT8].file)
    if wanted.ort_format:
        forms[FLOAT32] = _place(staged, FLOAT32, names, {}, ort_format=True)
        graphs = [name for name in GRAPHS if name in files]
        for name in graphs:
            write_optimised(staged / name, (staged / name).with_suffix(SUFFIX), LEVELS[0])
        added += [forms[FLOAT32].file, *(Path(name).with_suffix(SUFFIX).name for name in graphs)]
    return forms or None, added


def _quantise(
    staged: Path, names: Sequence[str], add_note: Callable[[str], None] | None
) -> Mapping[str, QuantisedWeights]:
    quantiser = Quantiser(onnx.load(str(staged / BASE[FLOAT32])), names)
    model = quantiser.run()
    onnx.save(model, str(staged / BASE[INT8]))
    left = left_in_float32(model, names)
    if left and add_note is not None:
        add_note(f"int8: these stay float32: {', '.join(left)}")
    return quantiser.layers


def _place(
    staged: Path,
    form: Form,
    names: Sequence[str],
    layers: Mapping[str, QuantisedWeights],
    *,
    ort_format: bool,
) -> StoredForm:
    """The description of a form: its file, in ORT format where that is wanted, and the slots in it."""
    source = staged / BASE[form]
    shapes = _shapes(staged / BASE[FLOAT32], names)
    plain = _slots(dict(raw_offsets(source.read_bytes())), shapes, layers)
    if plain is None:
        raise BundleError("parameters are not stored as raw data", where=str(source))
    if not ort_format:
        return StoredForm(source.name, plain)
    out = source.with_suffix(SUFFIX)
    for level in LEVELS:
        write_optimised(source, out, level, weights_change=True)
        places = {name: start for name, (start, _) in initializers(out.read_bytes()).items()}
        slots = _slots(places, shapes, layers)
        if slots is not None and _accepts_weights(source, plain, out, slots, TOLERANCES[form]):
            if form == INT8:
                source.unlink()
            return StoredForm(out.name, slots)
    raise BundleError(
        "weights cannot be replaced in its ORT format", where=str(source), remedy="build without --ort-format"
    )


def _shapes(model: Path, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    tensors = {tensor.name: tuple(tensor.dims) for tensor in onnx.load(str(model)).graph.initializer}
    return {name: tensors[name] for name in names if name in tensors}


def _slots(
    places: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    layers: Mapping[str, QuantisedWeights],
) -> tuple[Slot, ...] | None:
    """Where the parameters lie; None where one of them does not."""
    made: list[Slot] = []
    for name, shape in shapes.items():
        if name in layers:
            whole, scale = places.get(whole_name(name)), places.get(scale_name(name))
            if whole is None or scale is None:
                return None
            made.append(Slot(name, whole, shape, scale, **vars(layers[name])))
        if name in places:
            made.append(Slot(name, places[name], shape))
        elif name not in layers:
            return None
    return tuple(made)


def _accepts_weights(
    source: Path, plain: Sequence[Slot], out: Path, slots: Sequence[Slot], tolerance: float
) -> bool:
    """Whether both files answer alike once both have other weights."""
    rng = np.random.default_rng(0)
    values = {slot.name: _like_weights(rng, slot.shape) for slot in plain}
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        for path, inputs in ((source, plain), (out, slots)):
            base = BaseModel(path, None, inputs, values)
            changed = Path(folder) / path.name
            changed.write_bytes(base.with_parameters(values))
            answers.append(_answer(changed))
    first, other = answers
    return np.allclose(first, other, rtol=tolerance, atol=tolerance)


def _like_weights(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return rng.uniform(0.05, 0.2, shape).astype(np.float32) * rng.choice([-1, 1], shape).astype(np.float32)


def _answer(path: Path) -> NDArray[np.float32]:
    try:
        session = ort.session(str(path))
        first = session.get_inputs()[0]
        rows = np.random.default_rng(1).standard_normal((ROWS, *first.shape[1:])).astype(np.float32)
        made: NDArray[np.float32] = session.run(None, {first.name: rows})[0]
    except ort.ERRORS as problem:
        raise BundleError(f"does not run: {ort.one_line(problem)}", where=str(path)) from problem
    return made
