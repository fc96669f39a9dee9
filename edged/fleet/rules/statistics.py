"""Rounds in which devices send sums instead of updates, from which the model's last layer is solved for."""

from __future__ import annotations

import hashlib
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from edged.domain.federated.head_statistics import HeadStatistics, length
from edged.domain.federated.settings import LastLayer
from edged.domain.training.weight_deltas import fingerprint
from edged.errors import ConfigError, CorruptError, RejectedUpdateError
from edged.fleet.rules.admission import HEADERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.federated.messages import UpdateHeader
    from edged.domain.training.weight_deltas import Weights
    from edged.fleet.config import StatisticsSection

    Shapes = Mapping[str, tuple[int, ...]]
    Doubles = NDArray[np.float64]

T = TypeVar("T")

LARGEST = 512  # inputs of the layer: what is solved takes their square in memory, and their cube in time
CLOSE = 1e-9  # of the largest sum: the same numbers, added up in another order
ENOUGH = 3  # devices from which on one of them can stand out


@dataclass(frozen=True)
class SolvedLayer:
    """The layer that is solved for, in a model whose tensors are known."""

    layer: LastLayer
    width: int  # how many inputs it has
    outputs_first: bool  # its weight is `(outputs, inputs)`

    @classmethod
    def of(cls, shapes: Shapes, section: StatisticsSection) -> SolvedLayer:
        """The layer that the configuration names, or the last one by its name.

        Raises ConfigError when there is none, or it has too many inputs.
        """
        pairs = [(section.weight, section.bias)] if section.weight else _pairs(shapes)
        if not pairs or any(name not in shapes for name in pairs[-1]):
            raise ConfigError(
                f"the model has no layer {'/'.join(pairs[-1]) if pairs else 'of a weight and a bias'}",
                where="statistics",
                remedy=f"set weight and bias to two of {', '.join(sorted(shapes))}",
            )
        weight, bias = shapes[pairs[-1][0]], shapes[pairs[-1][1]]
        if len(weight) != 2 or len(bias) != 1 or bias[0] not in weight:
            raise ConfigError(f"{weight} and {bias} are no weight and bias of one layer", where="statistics")
        first = weight[0] == bias[0]
        width = weight[1] if first else weight[0]
        if width > LARGEST:
            raise ConfigError(f"the layer has {width} inputs, {LARGEST} at most", where="statistics")
        return cls(LastLayer(*pairs[-1], bias[0]), width, first)

    @property
    def size(self) -> int:
        """Numbers that a device sends."""
        return length(self.width, self.layer.outputs)

    def body(self, weights: Weights) -> str:
        """Fingerprint of all other parameters: sums add up where it is the same."""
        names = (self.layer.weight, self.layer.bias)
        return fingerprint({name: value for name, value in weights.items() if name not in names})

    def read(self, vector: Doubles) -> HeadStatistics:
        """The sums of a device from their numbers."""
        return HeadStatistics.from_vector(vector, self.width, self.layer.outputs)

    def model(self, base: Weights, total: HeadStatistics, section: StatisticsSection) -> Weights:
        """The base with the layer that the sums of all devices give; NoDataError as in `solved`."""
        weight, bias = total.solved(section.penalty, section.sharpness)
        laid = weight if self.outputs_first else np.ascontiguousarray(weight.T)
        solved = {self.layer.weight: laid, self.layer.bias: bias}
        return {name: np.asarray(solved.get(name, value), np.float32) for name, value in base.items()}


def _pairs(shapes: Shapes) -> list[tuple[str, str]]:
    """Weights and biases with one stem, in the order of their names, in which 10 comes after 9."""
    biases = [name for name, shape in shapes.items() if len(shape) == 1]
    found = [
        (weight, bias)
        for bias in biases
        for weight, shape in shapes.items()
        if len(shape) == 2 and shapes[bias][0] in shape and _stem(weight) == _stem(bias)
    ]
    return sorted(found, key=lambda pair: [(p.isdigit(), p.zfill(9)) for p in re.split(r"(\d+)", pair[0])])


def _stem(name: str) -> str:
    return re.split(r"[./_](?=[^./_]*$)", name)[0]


def admit_sums(
    update: UpdateHeader, blob: bytes, head: SolvedLayer, unpack: Callable[[bytes, int], Doubles]
) -> Doubles:
    """Check the sums of a device, whose line and blob these are; their numbers `(size,)`.

    Raises RejectedUpdateError with the reason: `samples`, `size`, `damaged`, `not_finite` or `sums`.
    """
    check_size(update, head)
    vector = _unpacked(update, blob, head.size, unpack)
    if not np.isfinite(vector).all():
        raise RejectedUpdateError("not_finite", "it holds numbers that are not finite")
    _check_sums(head.read(vector), update.samples)
    return vector


def admit_masked(
    update: UpdateHeader, blob: bytes, size: int, unpack: Callable[[bytes, int], NDArray[np.uint64]]
) -> NDArray[np.uint64]:
    """A vector `(size,)` under masks, of which nothing can be checked but its form.

    Raises RejectedUpdateError with the reason: `size` or `damaged`.
    """
    check_bytes(update, size)
    return _unpacked(update, blob, size, unpack)


def _unpacked(update: UpdateHeader, blob: bytes, size: int, unpack: Callable[[bytes, int], T]) -> T:
    if len(blob) != update.bytes or hashlib.sha256(blob).hexdigest() != update.sha256:
        raise RejectedUpdateError("damaged", "size or hash are not those that its line names")
    try:
        return unpack(blob, size)
    except CorruptError as problem:
        raise RejectedUpdateError("damaged", problem.what) from None


def check_size(update: UpdateHeader, head: SolvedLayer) -> None:
    """Refuse what is out of bounds before any of it is held."""
    if update.samples < 1:
        raise RejectedUpdateError("samples", f"{update.samples} samples, expected at least 1")
    check_bytes(update, head.size)


def check_bytes(update: UpdateHeader, numbers: int) -> None:
    """Refuse more bytes than so many numbers have."""
    most = 8 * numbers + HEADERS
    if update.bytes > most:
        raise RejectedUpdateError("size", f"{update.bytes} bytes, at most {most} are taken")


def _check_sums(sums: HeadStatistics, samples: int) -> None:
    """Refuse numbers that no samples can have."""
    if sums.rows != samples:
        raise RejectedUpdateError(
            "samples", f"the sums are of {sums.rows:g} samples, the line says {samples}"
        )
    squares, counts = sums.gram.diagonal(), sums.by_class[0]
    largest = np.sqrt(np.outer(squares, squares)) if (squares >= 0).all() else None
    if largest is None or (counts < 0).any() or (np.abs(sums.gram) > largest * (1 + CLOSE)).any():
        raise RejectedUpdateError("sums", "no samples have such sums")
    if np.abs(sums.by_class.sum(axis=1) - sums.gram[0]).max() > CLOSE * max(1.0, float(squares.max())):
        raise RejectedUpdateError("sums", "the sums of the classes are not the sum of all")


def outliers(energies: Mapping[str, float], most: float) -> list[str]:
    """Devices whose inputs are beyond `most` times the median's in their root mean square.

    >>> outliers({"a": 1.0, "b": 1.1, "c": 0.9, "liar": 1e6}, 3.0)
    ['liar']
    """
    if len(energies) < ENOUGH:
        return []
    middle = statistics.median(energies.values())
    return sorted(name for name, energy in energies.items() if energy > most**2 * max(middle, 1e-12))


def total_of(head: SolvedLayer, vectors: Iterable[tuple[float, Doubles]]) -> HeadStatistics:
    """The sum of all devices' numbers, each times its factor."""
    total = np.zeros(head.size)
    for factor, vector in vectors:
        total += factor * vector
    return head.read(total)
