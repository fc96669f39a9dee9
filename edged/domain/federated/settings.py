"""The model from which a round starts, and how devices train in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal

from edged.domain.json_fields import AtLeastOne, Digest, JsonFields, NotNegative, ShortTexts, read_dataclass

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
class RoundSettings:
    """How devices train in a round; `epochs` or `steps`, the other one is None.

    Attributes
    ----------
    proximal
        mu of FedProx (Li et al., 2020): weight of the squared distance to the base; 0 is off.
    dynamic
        alpha of FedDyn (see `dynamic`): weight of the squared distance to a point that answers to the
        device's earlier updates; 0 is off.
    clip_norm
        Largest L2 norm of the whole update.
    noise
        Standard deviation of Gaussian noise, in units of `clip_norm`; 0 is off.
    personal
        Patterns of the names of parameters that never leave a device.
    evaluate
        Whether devices report what they make of the base.
    """

    epochs: AtLeastOne | None = 1
    steps: AtLeastOne | None = None
    learning_rate: NotNegative = 1e-3
    batch_size: AtLeastOne = 32
    proximal: NotNegative = 0.0
    clip_norm: NotNegative = 1.0
    noise: NotNegative = 0.0
    encoding: Encoding = field(default_factory=Encoding)
    personal: ShortTexts = ()
    evaluate: bool = True
    dynamic: NotNegative = 0.0


def read_settings(values: JsonFields, name: str) -> RoundSettings:
    """The settings in a field of an announcement: with epochs or steps, not with both."""
    found = read_dataclass(RoundSettings, values.inner(name))
    if (found.epochs is None) == (found.steps is None):
        raise values.inner(name).wrong("epochs", "either epochs or steps")
    return found
