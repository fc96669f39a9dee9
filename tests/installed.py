"""The engines of the machine that the tests run on: the native one is wherever onnxruntime-training is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edged.engines.native import api
from edged.engines.portable.engine import PortableEngine

if TYPE_CHECKING or api.available():
    from edged.engines.native.engine import NativeEngine as UsualEngine
else:
    UsualEngine = PortableEngine

__all__ = ["ENGINES", "KINDS", "USUAL", "UsualEngine", "needs_native"]

ENGINES = ("native", "portable") if api.available() else ("portable",)
# What `engine: auto` comes to where nothing is timed.
USUAL = ENGINES[0]
KINDS: tuple[type[UsualEngine | PortableEngine], ...] = tuple(dict.fromkeys((UsualEngine, PortableEngine)))
needs_native = pytest.mark.skipif("native" not in ENGINES, reason="onnxruntime-training is not installed")
