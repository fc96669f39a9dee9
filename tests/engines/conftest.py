"""Where the training build of onnxruntime does not exist, what needs it is not collected."""

from __future__ import annotations

from edged.engines import training_api

NEEDS_TRAINING = [
    "test_contract.py",
    "test_native.py",
    "test_portable.py",
    "test_portable_checkpoint.py",
    "test_resume.py",
    "test_units.py",
]

collect_ignore = [] if training_api.available() else NEEDS_TRAINING
