"""The engines of the machine that the tests run on: the native one is wherever onnxruntime-training is."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.engines.native import api
from edged.errors import BundleError
from tests.building import build

if TYPE_CHECKING:
    import onnx

    from edged.storage.models.bundles import Bundle

__all__ = ["ENGINES", "built_for_each", "needs_native"]

ENGINES = ("portable", "native") if api.available() else ("portable",)
needs_native = pytest.mark.skipif("native" not in ENGINES, reason="onnxruntime-training is not installed")


def built_for_each(model: onnx.ModelProto | Path, folder: Path, **options: Any) -> dict[str, Bundle]:
    """A bundle in `folder` for each installed engine that can train the model; the portable one must."""
    bundles = {"portable": build(model, folder / "portable", **options)}
    if "native" in ENGINES:
        with suppress(BundleError):
            bundles["native"] = build(model, folder / "native", engine="native", **options)
    return bundles
