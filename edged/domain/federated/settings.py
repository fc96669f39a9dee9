"""The model from which a round starts, and how devices train in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal

from edged.domain.json_fields import (
    AtLeastOne,
    Digest,
    JsonFields,
    NotNegative,
    ShortText,
    ShortTexts,
    read_dataclass,
)

Dtype = Literal["float32", "float16", "int8"]

MOST_PARTS = 9 * 1024
Parts = Annotated[int, partial(JsonFields.count, least=1, most=MOST_PARTS)]


@dataclass(frozen=True)
class BaseModelInfo:
    """A model of the fleet: the fingerprint of its weights, and the bytes and parts that hold them."""

    hash: Digest
    bytes: AtLeastOne
    parts: Parts


@dataclass(frozen=True)
class Encoding:
    """How updates are coded; see `edged.domain.training.weight_deltas.Coding`."""

    dtype: Dtype = "int8"
    step: NotNegative = 0.0


@dataclass(frozen=True)
class LastLayer:
    """Parameters of a layer of which devices send sums; `weight` is `(outputs, inputs)`, or transposed.

    So many of its inputs count, spread evenly over all; see `head_statistics.spread`.
    """

    weight: ShortText
    bias: ShortText
    outputs: AtLeastOne
    units: AtLeastOne


def _layers(values: JsonFields, name: str) -> tuple[LastLayer, ...]:
    return tuple(read_dataclass(LastLayer, one) for one in values.each(name))


@dataclass(frozen=True)
class StatisticsSettings:
    """The layers of which devices send sums: the last one, or that of each expert of a mixture."""

    layers: Annotated[tuple[LastLayer, ...], _layers]
    targets: Literal["classes", "values"] = "classes"  # what the network answers


@dataclass(frozen=True)
class MaskSettings:
    """How an update becomes a part of a sum: times its share of `max_samples`, at most 1."""

    max_samples: AtLeastOne


@dataclass(frozen=True)
class RoundSettings:
    """How devices train in a round; `epochs` or `steps`, the other one is None."""

    epochs: AtLeastOne | None = 1
    steps: AtLeastOne | None = None
    learning_rate: NotNegative = 1e-3
    batch_size: AtLeastOne = 32
    proximal: NotNegative = 0.0  # mu of FedProx (Li et al., 2020), for the distance to the base; 0 is off
    clip_norm: NotNegative = 1.0  # largest L2 norm of the whole update
    noise: NotNegative = 0.0  # standard deviation of Gaussian noise, in units of `clip_norm`; 0 is off
    encoding: Encoding = field(default_factory=Encoding)
    personal: ShortTexts = ()  # patterns of the names of parameters that never leave a device
    evaluate: bool = True  # whether devices report what they make of the base
    dynamic: NotNegative = 0.0  # alpha of FedDyn, see `feddyn`; 0 is off
    own_noise: NotNegative | None = None  # the most that devices may add that insist on more than `noise`
    statistics: StatisticsSettings | None = None  # devices do not train, but send the sums to solve from
    masks: MaskSettings | None = None  # updates come under masks, so that only their sum is known

    @property
    def most_noise(self) -> float:
        """The largest noise that an update may have, in units of `clip_norm`."""
        return max(self.noise, self.own_noise or 0.0)


def read_settings(values: JsonFields, name: str) -> RoundSettings:
    """The settings in a field of an announcement: with epochs or steps, not with both."""
    found = read_dataclass(RoundSettings, values.inner(name))
    if (found.epochs is None) == (found.steps is None):
        raise values.inner(name).wrong("epochs", "either epochs or steps")
    return found
