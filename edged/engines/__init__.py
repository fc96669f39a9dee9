"""Engines: training behind one protocol, and serving.

This module and `edged.engines.inference` can be imported without any training package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from edged.domain.protocols import Engine
    from edged.engines.training_files import TrainingFiles

__all__ = ["open_engine"]


def open_engine(name: str, bundle: TrainingFiles, threads: int = 1) -> Engine:
    """The engine `name` (`auto`, `native` or `portable`) on `bundle`, imported only now.

    Raises
    ------
    UnavailableError
        When this engine is not available on this machine.
    ConfigError
        When there is no engine of this name.
    BundleError
        When the bundle's artifacts cannot be loaded.
    """
    if name == "portable":
        raise UnavailableError(
            "this version has no portable engine",
            where="training.engine",
            remedy="set engine: native and pip install onnxruntime-training-cpu==1.19.2",
        )
    if name not in ("auto", "native"):
        raise ConfigError(
            f"there is no engine {name!r}", where="training.engine", remedy="auto, native or portable"
        )
    from edged.engines.native import NativeEngine

    return NativeEngine(bundle, threads=threads)
