"""The model from which a round starts, and how devices train in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from edged.domain.json_fields import JsonFields

Dtype = Literal["float32", "float16", "int8"]

MOST_PARTS = 9 * 1024


@dataclass(frozen=True)
class BaseModelInfo:
    """A model of the fleet: the fingerprint of its weights, and the bytes and parts that hold them."""

    hash: str
    bytes: int
    parts: int

    @classmethod
    def read(cls, fields: JsonFields) -> BaseModelInfo:
        """From its JSON object."""
        return cls(fields.digest("hash"), fields.count("bytes", 1), fields.count("parts", 1, MOST_PARTS))


@dataclass(frozen=True)
class Encoding:
    """How updates are coded; see `edged.domain.training.weight_deltas.Coding`."""

    dtype: Dtype = "int8"
    step: float = 0.0

    @classmethod
    def read(cls, fields: JsonFields) -> Encoding:
        """From its JSON object."""
        dtype = cast("Dtype", fields.one_of("dtype", ("float32", "float16", "int8")))
        return cls(dtype, fields.number("step", 0.0))


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

    epochs: int | None = 1
    steps: int | None = None
    learning_rate: float = 1e-3
    batch_size: int = 32
    proximal: float = 0.0
    clip_norm: float = 1.0
    noise: float = 0.0
    encoding: Encoding = field(default_factory=Encoding)
    personal: tuple[str, ...] = ()
    evaluate: bool = True
    dynamic: float = 0.0

    @classmethod
    def read(cls, fields: JsonFields) -> RoundSettings:
        """From its JSON object."""
        epochs = fields.optional("epochs", lambda name: fields.count(name, 1))
        steps = fields.optional("steps", lambda name: fields.count(name, 1))
        if (epochs is None) == (steps is None):
            raise fields.wrong("epochs", "either epochs or steps")
        return cls(
            epochs,
            steps,
            fields.number("learning_rate", 0.0),
            fields.count("batch_size", 1),
            fields.number("proximal", 0.0),
            fields.number("clip_norm", 0.0),
            fields.number("noise", 0.0),
            Encoding.read(fields.inner("encoding")),
            fields.texts("personal"),
            fields.flag("evaluate"),
            fields.number("dynamic", 0.0),
        )
