"""Importing onnxruntime without the training stack.

The training build, when imported, tries to import `onnxruntime.training.ortmodule` to look at its CUDA
version. Without torch that fails, but only after `onnx` and all offline tooling have been loaded: 14 MB
and half of the import time, for nothing, in a daemon that only serves. Everything here imports the
runtime from this module, so that the attempt fails at once.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, cast

_PROBED = "onnxruntime.training.ortmodule"


def _import_runtime() -> Any:
    modules = cast("dict[str, Any]", sys.modules)
    # None is how the import system is told that a module does not exist.
    modules.setdefault(_PROBED, None)
    try:
        return importlib.import_module("onnxruntime")
    finally:
        if modules[_PROBED] is None:
            del modules[_PROBED]


onnxruntime = _import_runtime()
native = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
