"""Names in the files of a model: in a directory of the registry, or of a candidate."""

from __future__ import annotations

MODEL = "model.onnx"
PROBE_FILES = ("probe_input.npy", "probe_output.npy")
"""Inputs `(n, d)` in a candidate, and the trainer's outputs for them: the daemon must get the same."""
EXPERTS = "experts"
"""The output of a model of experts that has what each of them says, `(batch, experts·classes)`."""
MIX_WEIGHTS = "mix.weights"
"""Its parameter with how much each expert counts, `(1, experts, 1)`."""
TARGET_MEAN = "target.mean"
"""A parameter of a standard network that answers numbers."""
FLOOR = 1e-4  # added to probabilities: what an expert holds for impossible costs it no more than this
