"""The order for the standard bundle of a stream, from the daemon to the builder's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edged.domain.stream.schema import Task
from edged.domain.training.message import Message

NetworkKind = Literal["experts", "mlp", "cnn1d", "gru", "autoencoder"]
CONTEXT = (3.0, 12.0, 48.0)
"""Half-lives of the means that `experts` sees samples beside, in samples."""


@dataclass(frozen=True)
class StandardNetwork(Message):
    """A small network for a stream.

    `window` holds the rows and channels of the `features` numbers that it takes. The last size in `hidden` is
    an autoencoder's code. `context` are half-lives of means: `features` is then the width with all columns.
    `change_of` are columns of the input, one for each output: it begins with answering their values, and
    learns how the target differs from them.
    """

    task: Task
    features: int
    outputs: int
    kind: NetworkKind
    window: tuple[int, ...]
    hidden: tuple[int, ...]
    seed: int = 0
    context: tuple[float, ...] = ()
    change_of: tuple[int, ...] = ()


@dataclass(frozen=True)
class StandardBundleOrder(Message):
    """Build the bundle of a standard network in the directory `out`.

    `options` go to the optimizer. `statistics` are `mean` and `scale` of the inputs, and for values
    `target_mean` and `target_scale`; without them the graph gets neutral ones, which the first training run
    fits.
    """

    network: StandardNetwork
    out: Path
    optimizer: str = "adamw"
    options: Mapping[str, float | bool | None] | None = None
    label_smoothing: float = 0.0  # for classes
    statistics: Mapping[str, tuple[float, ...]] | None = None
