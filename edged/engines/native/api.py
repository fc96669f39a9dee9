"""The way to onnxruntime's training API, which needs no PyTorch although its package asks for it.

`import onnxruntime.training` imports `onnxruntime.training.optim`, which imports torch
(microsoft/onnxruntime#22070). `api`, `artifacts` and `onnxblock` do not: an empty module in the place
of the package lets them be imported alone. `artifacts` would take torch along where it is installed, for a
function that nobody calls: 240 MB and seconds. It does not see it.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from edged.engines.runtime.ort import onnxruntime
from edged.errors import UnavailableError
from edged.lazy_imports import hidden

_PACKAGE = "onnxruntime.training"
_REMEDY = (
    "pip install onnxruntime-training-cpu==1.19.2 (x86-64, Python up to 3.12), or use the portable engine:"
    " training.engine: portable, or --engine portable"
)


def load(part: str) -> Any:
    """The module `onnxruntime.training.<part>`: `api`, `artifacts` or `onnxblock`.

    Raises UnavailableError when this installation of onnxruntime cannot train.
    """
    if not available():
        what = "onnxruntime-training is not installed"
        raise UnavailableError(what, where="engine native", remedy=_REMEDY)
    _put_package_in_place()
    with hidden("torch"):
        return importlib.import_module(f"{_PACKAGE}.{part}")


def available() -> bool:
    """Whether onnxruntime-training is installed; imports nothing of it."""
    return (_folder() / "api" / "__init__.py").is_file()


def _folder() -> Path:
    return Path(onnxruntime.__file__).parent / "training"


def _put_package_in_place() -> None:
    if _PACKAGE in sys.modules:
        return
    spec = ModuleSpec(_PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(_folder())]
    package = ModuleType(_PACKAGE)
    package.__spec__, package.__path__ = spec, spec.submodule_search_locations
    sys.modules[_PACKAGE] = package
    onnxruntime.training = package
