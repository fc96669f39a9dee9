"""Features of a window, computed inside the graph: what a dense network cannot easily see by itself.

They take the window as the network gets it, so behind the standardisation that the build puts first: every
channel counts alike, and the features follow it when it is fitted to sensors that drift. Standard operators
and constants alone; nothing of it is trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edged.bundles.graph.network import Network


def add_features(network: Network, size: int, channels: int, names: Sequence[str]) -> int:
    """Put features of windows `(batch, size·channels)` behind the network's input; how many there are.

    Raises
    ------
    ConfigError
        When a name is unknown or there twice, or a window has fewer than 2 rows.
    """
    unknown = [name for name in names if name not in FEATURES]
    if unknown or len(set(names)) < len(names):
        what = f"unknown features {unknown[0]!r}" if unknown else "features are there twice"
        raise ConfigError(what, where="--features", remedy=f"any of {', '.join(FEATURES)}")
    if size < 2:
        raise ConfigError("features need windows", where="--inputs", remedy="such as 128x9: rows x channels")
    shape = network.constant("window.shape", np.array([0, size, channels], np.int64))
    window = network.add("Reshape", [network.current, shape], "window")
    made = [FEATURES[name](network, window, size, channels) for name in names]
    if len(made) > 1:
        network.add("Concat", [name for name, _ in made], "features", axis=1)
    return sum(width for _, width in made)


def _statistics(network: Network, window: str, size: int, channels: int) -> tuple[str, int]:
    """Mean, standard deviation, minimum, maximum, root mean square and mean absolute difference."""

    def over_time(operator: str, x: str) -> str:
        return network.add(operator, [x], axes=[1], keepdims=1)

    def root(x: str) -> str:
        return network.add("Sqrt", [over_time("ReduceMean", network.add("Mul", [x, x]))])

    mean = over_time("ReduceMean", window)
    ends = [np.array([end], np.int64) for end in (0, size - 1, 1, size)]
    axis = network.constant("window.axis", np.array([1], np.int64))
    first, before_last, second, last = (network.constant(f"window.end{i}", end) for i, end in enumerate(ends))
    earlier = network.add("Slice", [window, first, before_last, axis])
    later = network.add("Slice", [window, second, last, axis])
    step = network.add("Abs", [network.add("Sub", [later, earlier])])
    parts = [
        mean,
        root(network.add("Sub", [window, mean])),
        over_time("ReduceMin", window),
        over_time("ReduceMax", window),
        root(window),
        over_time("ReduceMean", step),
    ]
    joined = network.add("Concat", parts, "window.statistics", axis=1)
    return network.add("Flatten", [joined], axis=1), len(parts) * channels


def _spectrum(network: Network, window: str, size: int, channels: int) -> tuple[str, int]:
    """log(1 + magnitude) of the discrete Fourier transform, scaled so that white noise keeps its size."""
    bins = size // 2 + 1
    angle = 2 * np.pi * np.outer(np.arange(size), np.arange(bins)) / size
    by_channel = network.add("Transpose", [window], perm=[0, 2, 1])
    squares = []
    for name, wave in (("cosine", np.cos(angle)), ("sine", np.sin(angle))):
        matrix = network.constant(f"window.{name}", (wave / np.sqrt(size)).astype(np.float32))
        part = network.add("MatMul", [by_channel, matrix])
        squares.append(network.add("Mul", [part, part]))
    magnitude = network.add("Sqrt", [network.add("Add", squares)])
    one = network.constant("window.one", np.array(1, np.float32))
    spectrum = network.add("Log", [network.add("Add", [magnitude, one])], "window.spectrum")
    return network.add("Flatten", [spectrum], axis=1), bins * channels


FEATURES: dict[str, Callable[[Network, str, int, int], tuple[str, int]]] = {
    "statistics": _statistics,
    "spectrum": _spectrum,
}
