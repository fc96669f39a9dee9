"""Where the training build of onnxruntime does not exist, what needs it is not collected."""

from __future__ import annotations

from edged.engines.native import api

collect_ignore = (
    []
    if api.available()
    else [
        "test_build.py",
        "test_inspect.py",
        "test_losses.py",
        "test_export.py",
        "test_exported.py",
        "test_forms.py",
        "test_trained.py",
        "test_cross_entropy.py",
        "test_operators.py",
        "test_parameters.py",
        "test_selection.py",
        "test_block_loss.py",
        "test_heads.py",
        "test_preflight.py",
        "test_origins.py",
        "test_checkpoints.py",
    ]
)
