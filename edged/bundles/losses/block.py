"""Losses that onnxruntime-training's own classes write: subclasses of `onnxruntime.training.onnxblock.Block`.

They exist only where that package is installed. Nothing but what they add to a graph is taken from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from edged.bundles.graph import onnxruntime_generator
from edged.engines.native import api


def is_block(given: Any) -> bool:
    """Whether it is a block for a loss, or the class of one."""
    if not api.available():
        return False
    kind, blocks = given if isinstance(given, type) else type(given), api.load("onnxblock")
    return issubclass(kind, blocks.Block) and not issubclass(kind, blocks.TrainingBlock)


def appended(given: Any, base: onnx.ModelProto, compared: Sequence[str]) -> tuple[onnx.ModelProto, Any]:
    """The model with what the block adds, called as `generate_artifacts` calls it, and what it returns."""
    onnxruntime_generator.prepare_blocks()
    made = onnx.ModelProto()
    with api.load("onnxblock").base(base) as handle:
        name = (given() if isinstance(given, type) else given)(*compared)
        made.CopyFrom(handle.model)
    return made, name if isinstance(name, str) else next(iter(name or ()), None)
