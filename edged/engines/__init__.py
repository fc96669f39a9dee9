"""Engines: training behind one protocol, and serving.

This module and `edged.engines.inference` can be imported without any training package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edged.engines.runtime import ort as execution
from edged.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from edged.domain.bundle_contents import BundleContents
    from edged.domain.protocols import Engine

__all__ = ["candidates", "open_engine", "reason_for", "usual_engine"]

ENGINES = ("native", "portable")


def open_engine(
    name: str, bundle: BundleContents, threads: int = 1, *, providers: Sequence[str] = execution.CPU
) -> Engine:
    """The engine `name` (`auto`, `native` or `portable`) on `bundle`, imported only now.

    `auto` is `usual_engine` here, which depends on what is installed and on nothing that is timed: the
    same machine always gives the same numbers. The trainer asks `edged.trainer.engine_selection` for the
    faster one.

    `threads` are those of one training step, `providers` execution providers of the portable engine by
    onnxruntime's names, the preferred one first.

    Raises UnavailableError when this engine or provider is not available on this machine, or the engine not
    for this bundle; ConfigError when there is no engine or no execution provider of this name, or the two do
    not go together; BundleError when the bundle's artifacts cannot be loaded.
    """
    if name not in ("auto", *ENGINES):
        raise ConfigError(
            f"there is no engine {name!r}", where="training.engine", remedy="auto, native or portable"
        )
    chosen = usual_engine(bundle, providers)[0] if name == "auto" else name
    if chosen == "portable":
        from edged.engines.portable.engine import PortableEngine

        return PortableEngine(bundle, threads=threads, providers=providers)
    from edged.engines.native import api

    api.load("api")  # the package first: without it another bundle would not help
    if "native" not in bundle.engines:
        raise UnavailableError(
            "this bundle is for the portable engine alone",
            where="training.engine",
            remedy="set engine: portable, or build the bundle with --engine both",
        )
    if not execution.only_cpu(providers):
        raise ConfigError(
            f"the native engine has no {providers[0]}",
            where="training.provider",
            remedy="set engine: portable with a bundle for it, or leave provider out",
        )
    from edged.engines.native.engine import NativeEngine

    return NativeEngine(bundle, threads=threads)


def reason_for(name: str, bundle: BundleContents, providers: Sequence[str] = execution.CPU) -> str:
    """Why `open_engine` takes the engine that it takes, in a few words."""
    return f"training.engine is {name}" if name != "auto" else usual_engine(bundle, providers)[1]


def candidates(bundle: BundleContents, providers: Sequence[str] = execution.CPU) -> tuple[str, ...]:
    """The engines that could train this bundle here: installed, built for, able to use the providers."""
    from edged.engines.native import api

    engines = bundle.engines
    native = api.available() and "native" in engines and execution.only_cpu(providers)
    return tuple(name for name in engines if name == "portable" or (name == "native" and native))


def usual_engine(bundle: BundleContents, providers: Sequence[str] = execution.CPU) -> tuple[str, str]:
    """The engine that is taken without timing any, and why.

    The native engine where it is installed and the bundle is for it, else the portable one. The same
    machine always gives the same answer, which is what an evaluation must have.
    """
    from edged.engines.native import api

    if "native" in candidates(bundle, providers):
        return "native", _only(bundle, "it is installed here, and the bundle is for it")
    if "portable" not in bundle.engines:
        return "native", _only(bundle, "")
    if not execution.only_cpu(providers):
        return "portable", f"native has no {providers[0]}"
    installed = api.available()
    return "portable", _only(bundle, "") if installed else "native is not installed here"


def _only(bundle: BundleContents, otherwise: str) -> str:
    """That the bundle is for one engine alone, and why, as far as its build has noted that."""
    engines, refused = bundle.engines, bundle.refused
    if "portable" not in engines:
        why = refused.get("portable", "it has no step graph, which --engine both would add")
        return f"the bundle is for it alone: {why}"
    if "native" in engines:
        return otherwise
    return "the bundle is for it alone" + (f": {refused['native']}" if "native" in refused else "")
