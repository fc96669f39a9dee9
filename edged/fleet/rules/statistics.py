"""Rounds in which devices send sums instead of updates, from which the model's last layers are solved for."""

from __future__ import annotations

import hashlib
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from edged.domain.federated.head_statistics import HeadStatistics, NetworkStatistics, length, spread
from edged.domain.federated.settings import LastLayer, StatisticsSettings
from edged.domain.model_files import MIX_WEIGHTS
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

LARGEST = 512  # inputs of a layer that count: what is solved takes their square in memory, their cube in time
MOST_BYTES = 200_000  # of an update, unless the configuration says how many inputs count
CLOSE = 1e-9  # of the largest sum: the same numbers, added up in another order
ENOUGH = 3  # devices from which on one of them can stand out


@dataclass(frozen=True)
class SolvedLayer:
    """A layer that is solved for, in a model whose tensors are known."""

    layer: LastLayer
    width: int  # how many inputs it has
    outputs_first: bool  # its weight is `(outputs, inputs)`

    @classmethod
    def of(cls, shapes: Shapes, weight: str, bias: str) -> SolvedLayer:
        """The layer of these parameters, all of whose inputs count; ConfigError when they are of none."""
        shape, outputs = shapes[weight], shapes[bias]
        if len(shape) != 2 or len(outputs) != 1 or outputs[0] not in shape:
            raise ConfigError(
                f"{shape} and {outputs} are no weight and bias of one layer", where="statistics"
            )
        first = shape[0] == outputs[0]
        width = shape[1] if first else shape[0]
        return cls(LastLayer(weight, bias, outputs[0], min(width, LARGEST)), width, first)

    def size(self, *, values: bool) -> int:
        """Numbers that a device sends for it."""
        return length(self.layer.units, self.layer.outputs, values=values)

    def of_units(self, most: int) -> SolvedLayer:
        """The layer with so many inputs that count at most."""
        return replace(self, layer=replace(self.layer, units=min(self.layer.units, most)))

    def tensors(self, weight: Doubles, bias: Doubles) -> dict[str, Doubles]:
        """Its parameters from weights `(outputs, units)` and a bias; inputs that do not count have none."""
        whole = np.zeros((self.layer.outputs, self.width))
        whole[:, spread(self.width, self.layer.units)] = weight
        return {self.layer.weight: whole if self.outputs_first else whole.T.copy(), self.layer.bias: bias}


@dataclass(frozen=True)
class SolvedHead:
    """The layers that rounds of statistics solve for: the last one, or that of each expert of a mixture."""

    layers: tuple[SolvedLayer, ...]
    targets: Literal["classes", "values"] = "classes"

    @classmethod
    def of(
        cls, shapes: Shapes, section: StatisticsSection, targets: Literal["classes", "values"] = "classes"
    ) -> SolvedHead:
        """The layer that the configuration names, or the last ones by their names.

        Raises ConfigError when there is none, or its answers are no classes though they should be.
        """
        pairs = [(section.weight, section.bias)] if section.weight else _last_layers(shapes)
        if not pairs or any(name not in shapes for name in pairs[-1]):
            raise ConfigError(
                f"the model has no layer {'/'.join(pairs[-1]) if pairs else 'of a weight and a bias'}",
                where="statistics",
                remedy=f"set weight and bias to two of {', '.join(sorted(shapes))}",
            )
        found = cls(tuple(SolvedLayer.of(shapes, *pair) for pair in pairs), targets)
        outputs = {layer.layer.outputs for layer in found.layers}
        if len(outputs) > 1 or (targets == "classes" and outputs == {1}):
            said = f"layers of {', '.join(map(str, sorted(outputs)))} outputs, one for each class is expected"
            raise ConfigError(said, where="statistics", remedy="name weight and bias of the last layer")
        return found.of_units(section.units or found.affordable())

    def of_units(self, most: int) -> SolvedHead:
        """The same with so many inputs of each layer that count at most."""
        return replace(self, layers=tuple(layer.of_units(most) for layer in self.layers))

    def affordable(self) -> int:
        """How many inputs of each layer may count in an update of `MOST_BYTES`; 1 at least."""
        return max([1, *(n for n in range(1, LARGEST + 1) if 8 * self.of_units(n).size <= MOST_BYTES)])

    @property
    def settings(self) -> StatisticsSettings:
        """The settings that devices receive with a round."""
        return StatisticsSettings(tuple(layer.layer for layer in self.layers), self.targets)

    @property
    def _values(self) -> bool:
        return self.targets == "values"

    @property
    def size(self) -> int:
        """Numbers that a device sends."""
        return sum(layer.size(values=self._values) for layer in self.layers)

    def body(self, weights: Weights) -> str:
        """Fingerprint of all other parameters, and the size: sums add up where they are the same."""
        names = {name for layer in self.layers for name in (layer.layer.weight, layer.layer.bias)}
        rest = {name: value for name, value in weights.items() if name not in names}
        return f"{fingerprint(rest)} {self.size}"

    def read(self, vector: Doubles) -> NetworkStatistics:
        """The sums of a device from their numbers; CorruptError where they are of another head."""
        if vector.shape != (self.size,):
            raise CorruptError(f"{vector.shape} is not ({self.size},)", where="statistics")
        ends = list(accumulate(layer.size(values=self._values) for layer in self.layers))
        parts = zip(self.layers, np.split(vector, ends[:-1]), strict=True)
        read = partial(HeadStatistics.from_vector, values=self._values)
        return NetworkStatistics(
            tuple(read(part, layer.layer.units, layer.layer.outputs) for layer, part in parts)
        )

    def model(self, base: Weights, total: NetworkStatistics, section: StatisticsSection) -> Weights:
        """The base with the layers that the sums of all devices give; NoDataError as in `solved`."""
        solved: dict[str, Doubles] = {}
        for layer, sums in zip(self.layers, total.layers, strict=True):
            solved |= layer.tensors(*sums.solved(section.penalty, section.sharpness))
        return {name: np.asarray(solved.get(name, value), np.float32) for name, value in base.items()}


def _last_layers(shapes: Shapes) -> list[tuple[str, str]]:
    """The last layer; of experts, each of which has as many layers, the last of each."""
    pairs, experts = _pairs(shapes), shapes.get(MIX_WEIGHTS, (1, 1, 1))[1]
    if len(pairs) % experts:
        raise ConfigError(
            f"{len(pairs)} layers are not as many for each of {experts} experts",
            where="statistics", remedy="take a standard network",
        )  # fmt: skip
    each = len(pairs) // experts
    return pairs[each - 1 :: each] if each else []


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
    update: UpdateHeader, blob: bytes, head: SolvedHead, unpack: Callable[[bytes, int], Doubles]
) -> Doubles:
    """Check the sums of a device, whose line and blob these are; their numbers `(size,)`.

    Raises RejectedUpdateError with the reason: `samples`, `size`, `damaged`, `not_finite` or `sums`.
    """
    check_size(update, head)
    vector = _unpacked(update, blob, head.size, unpack)
    if not np.isfinite(vector).all():
        raise RejectedUpdateError("not_finite", "it holds numbers that are not finite")
    for layer in head.read(vector).layers:
        _check_sums(layer, update.samples)
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


def check_size(update: UpdateHeader, head: SolvedHead) -> None:
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
    inputs = sums.gram.diagonal()
    if (inputs < 0).any() or _beyond(sums.gram, inputs, inputs):
        raise RejectedUpdateError("sums", "no samples have such sums")
    if sums.squares is not None:
        if (sums.squares < 0).any() or _beyond(sums.by_target, inputs, sums.squares):
            raise RejectedUpdateError("sums", "no samples have such sums of targets")
        return
    apart = np.abs(sums.by_target.sum(axis=1) - sums.gram[0]).max()
    if (sums.by_target[0] < 0).any() or apart > CLOSE * max(1.0, float(inputs.max())):
        raise RejectedUpdateError("sums", "the sums of the classes are not the sum of all")


def _beyond(products: Doubles, first: Doubles, second: Doubles) -> bool:
    """Whether sums of products `(n, m)` are larger than those of the squares `(n,)` and `(m,)` allow."""
    return bool((np.abs(products) > np.sqrt(np.outer(first, second)) * (1 + CLOSE)).any())


def outliers(energies: Mapping[str, float], most: float) -> list[str]:
    """Devices whose mean square is beyond the square of `most` times the median's.

    >>> outliers({"a": 1.0, "b": 1.1, "c": 0.9, "liar": 1e6}, 3.0)
    ['liar']
    """
    if len(energies) < ENOUGH:
        return []
    middle = statistics.median(energies.values())
    return sorted(name for name, energy in energies.items() if energy > most**2 * max(middle, 1e-12))


def total_of(head: SolvedHead, vectors: Iterable[tuple[float, Doubles]]) -> NetworkStatistics:
    """The sum of all devices' numbers, each times its factor."""
    total = np.zeros(head.size)
    for factor, vector in vectors:
        total += factor * vector
    return head.read(total)
