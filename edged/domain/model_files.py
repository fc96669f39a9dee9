"""Names of the model files in a directory of the registry, or of a candidate.

A model lies there as `model.onnx`, or as `model.ort` where its bundle was built in ORT format.
"""

from __future__ import annotations

from pathlib import Path

FLOAT32 = "float32"
"""The form of an inference model that a bundle describes beside the plain ONNX file: in ORT format."""
SUFFIXES = (".onnx", ".ort")
PROBE_FILES = ("probe_input.npy", "probe_output.npy")
"""Inputs `(n, d)` in a candidate, and the trainer's outputs for them: the daemon must get the same."""


def file_name(suffix: str) -> str:
    """Return the name of the model file; `suffix` says which format it has."""
    return f"model{suffix}"


def model_in(folder: Path) -> Path:
    """Return the model file in this directory; `model.onnx` where there is none."""
    paths = [folder / file_name(suffix) for suffix in SUFFIXES]
    return next((path for path in paths if path.exists()), paths[0])


EXPERTS = "experts"
"""The output of a model of experts that has what each of them says, `(batch, experts·classes)`."""
MIX_WEIGHTS = "mix.weights"
"""Its parameter with how much each expert counts, `(1, experts, 1)`."""
TARGET_MEAN = "target.mean"
"""A parameter of a standard network that answers numbers."""
FLOOR = 1e-4  # added to probabilities: what an expert holds for impossible costs it no more than this
