"""Names of the model files in a directory of the registry, or of a candidate.

A model lies there as `model.onnx`, or as `model.ort` where its bundle was built in ORT format; and its
quantised form, where it has one, beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Form = Literal["float32", "int8"]

FLOAT32: Form = "float32"
INT8: Form = "int8"
SUFFIXES = (".onnx", ".ort")
_STEMS: dict[Form, str] = {FLOAT32: "model", INT8: "model.int8"}


def file_name(suffix: str, form: Form = FLOAT32) -> str:
    """The name of a form; `suffix` says which format it has.

    >>> file_name(".ort", "int8")
    'model.int8.ort'
    """
    return f"{_STEMS[form]}{suffix}"


def model_in(folder: Path, form: Form = FLOAT32) -> Path:
    """The file of a form in this directory; `model.onnx` where there is none."""
    paths = [folder / file_name(suffix, form) for suffix in SUFFIXES]
    return next((path for path in paths if path.exists()), paths[0])


EXPERTS = "experts"
"""The output of a model of experts that has what each of them says, `(batch, experts·classes)`."""
MIX_WEIGHTS = "mix.weights"
"""Its parameter with how much each expert counts, `(1, experts, 1)`."""
TARGET_MEAN = "target.mean"
"""A parameter of a standard network that answers numbers."""
FLOOR = 1e-4  # added to probabilities: what an expert holds for impossible costs it no more than this
