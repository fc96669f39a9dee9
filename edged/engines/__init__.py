"""Engines: training behind one protocol, and serving.

This module and `edged.engines.inference` can be imported without any training package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.bundle_contents import BundleContents, Standardisation
from edged.domain.protocols import Engine
from edged.engines.runtime import ort
from edged.errors import ConfigError, UnavailableError

__all__ = ["ENGINES", "open_engine", "random_rows"]

ENGINES = ("portable", "native")


def open_engine(
    name: str, bundle: BundleContents, threads: int = 1, *, providers: Sequence[str] = ort.CPU
) -> Engine:
    """The engine `name` on a bundle that was built for it, imported only now.

    `threads` are those of one training step, `providers` execution providers of the portable engine by
    onnxruntime's names, the preferred one first.

    Raises UnavailableError when this engine or provider is not available on this machine, or the bundle was
    built for the other engine; ConfigError when there is no engine or no execution provider of this name, or
    the two do not go together; BundleError when the bundle's artifacts cannot be loaded.
    """
    if name not in ENGINES:
        raise ConfigError(
            f"there is no engine {name!r}", where="training.engine", remedy=f"one of {', '.join(ENGINES)}"
        )
    if name == "native":
        from edged.engines.native import api

        api.load("api")  # the package first: without it another bundle would not help
    if name != bundle.engine:
        raise UnavailableError(
            f"{bundle.path} was built for the {bundle.engine} engine",
            where=f"training.engine: {name}",
            remedy=f"set it to {bundle.engine}, or build the bundle with --engine {name}",
        )
    if name == "portable":
        from edged.engines.portable.engine import PortableEngine

        return PortableEngine(bundle, threads=threads, providers=providers)
    if not ort.only_cpu(providers):
        raise ConfigError(
            f"the native engine has no {providers[0]}",
            where="training.provider",
            remedy="leave provider out, or set engine: portable with a bundle for it",
        )
    from edged.engines.native.engine import NativeEngine

    return NativeEngine(bundle, threads=threads)


def random_rows(
    bundle: BundleContents, engine: Engine, count: int
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Random rows `(count, d)` in raw units, to try an engine on a bundle with, and labels for them.

    Standardised values are uniform in [0, 1): where the graph reads them as indices, 0 is one always.
    """
    rng, parameters = np.random.default_rng(0), engine.parameters()

    def raw(values: NDArray[Any], names: Standardisation | None) -> NDArray[np.float32]:
        if names is not None:
            values = values / parameters[names["scale"]] + parameters[names["mean"]]
        return values.astype(np.float32)

    x, shape = raw(rng.random((count, bundle.input.width)), bundle.standardise), (count, *bundle.label.row)
    if bundle.label.dtype == "int64":
        # A function may read the label as a class of any output.
        return x, rng.integers(0, min(one.width for one in (bundle.output, *bundle.more_outputs)), shape)
    return x, raw(rng.integers(0, 2, shape), bundle.target_standardise)
