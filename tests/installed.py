"""The engines of the machine that the tests run on: the native one is wherever onnxruntime-training is."""

from __future__ import annotations

import pytest

from edged.engines.native import api

ENGINES = ("native", "portable") if api.available() else ("portable",)
REASON = "onnxruntime-training is not installed"
needs_native = pytest.mark.skipif("native" not in ENGINES, reason=REASON)
