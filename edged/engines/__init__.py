"""Engines: training behind one protocol, and serving.

This module and `edged.engines.inference` can be imported without any training package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from edged.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from edged.domain.protocols import Engine
    from edged.engines.portable_files import PortableFiles
    from edged.engines.training_files import TrainingFiles

__all__ = ["open_engine", "reason_for"]


def open_engine(name: str, bundle: TrainingFiles, threads: int = 1) -> Engine:
    """The engine `name` (`auto`, `native` or `portable`) on `bundle`, imported only now.

    `auto` takes the native engine where it is installed and the bundle is for it, else the portable one.

    Raises
    ------
    UnavailableError
        When this engine is not available on this machine, or not for this bundle.
    ConfigError
        When there is no engine of this name.
    BundleError
        When the bundle's artifacts cannot be loaded.
    """
    if name not in ("auto", "native", "portable"):
        raise ConfigError(
            f"there is no engine {name!r}", where="training.engine", remedy="auto, native or portable"
        )
    chosen = _choose(bundle)[0] if name == "auto" else name
    if chosen == "portable":
        from edged.engines.portable import PortableEngine

        return PortableEngine(cast("PortableFiles", bundle), threads=threads)
    _refuse_portable_only(bundle)
    from edged.engines.native import NativeEngine

    return NativeEngine(bundle, threads=threads)


def reason_for(name: str, bundle: TrainingFiles) -> str:
    """Why `open_engine` takes the engine that it takes, in a few words."""
    return f"training.engine is {name}" if name != "auto" else _choose(bundle)[1]


def _choose(bundle: TrainingFiles) -> tuple[str, str]:
    from edged.engines import training_api

    engines = _engines(bundle)
    if training_api.available() and "native" in engines:
        return "native", "installed here, and the bundle is for it"
    if "portable" in engines:
        installed = training_api.available()
        return "portable", "the bundle is for it alone" if installed else "native is not installed here"
    return "native", "the bundle has no step graph for the portable engine"


def _refuse_portable_only(bundle: TrainingFiles) -> None:
    if "native" not in _engines(bundle):
        raise UnavailableError(
            "this bundle is for the portable engine alone",
            where="training.engine",
            remedy="set engine: portable, or build the bundle with --engine both",
        )


def _engines(bundle: TrainingFiles) -> tuple[str, ...]:
    # Artifacts that upstream made have no description and are for the native engine.
    return tuple(getattr(bundle, "engines", ("native",)))
