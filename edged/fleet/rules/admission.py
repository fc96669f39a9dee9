"""Checks of an update before it counts: a mean takes NaN, too, and any number of samples.

Flower's own strategies, for one, let NaN, negative counts and arrays of length 1 through. Each refusal has a
word, which is counted and sent to the device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edged.domain.arrays import Floats
from edged.domain.federated.messages import RoundAnnouncement, RoundSettings, UpdateHeader
from edged.domain.training.weight_coding import Coded
from edged.errors import CorruptError, RejectedUpdateError
from edged.fleet.rules.layout import EncodedUpdate, Layout
from edged.mqtt.weight_encoding import unpack_coded

HEADERS = 64 * 1024
"""Bytes that names, shapes and scales may have beside the numbers."""

LATE = "late"
"""Reason of what comes for a round or a stage that is over."""

MAX_SAMPLES = 10_000
"""Samples that a device counts for at most, however many it has."""

MAX_NORM = 3.0
"""Multiple of a round's `clip_norm` up to which a norm is clipped; updates beyond are refused."""

ROUNDING = 1.02
"""Factor that rounding to int8 can add to a norm."""


@dataclass(frozen=True)
class Admitted:
    """An update that was admitted, laid out as it came, and its L2 norm."""

    row: EncodedUpdate
    norm: float
    factor: float  # what it is multiplied with, so that the norm keeps to the bound


def largest(layout: Layout) -> int:
    """Return the maximum bytes of an update, packed, unpacked or decoded to float32."""
    return 4 * layout.size + 512 * len(layout.names) + 4 * layout.rows + HEADERS


def check_sender(update: UpdateHeader, device: str, number: int | None, part: int | None) -> None:
    """Refuse an update whose line says something else than its topic, which the broker's rules guard."""
    if update.device != device:
        raise RejectedUpdateError("identity", f"the topic is of {device}, the update of {update.device}")
    if update.round != number or update.part != (part or 0) or (part is None) != (update.parts == 1):
        raise RejectedUpdateError("malformed", "round or part are not those of the topic")


def check_round(update: UpdateHeader, announced: RoundAnnouncement) -> None:
    """Refuse an update that is not for the open round."""
    if update.round < announced.round or (update.id == announced.id and announced.state != "open"):
        raise RejectedUpdateError(LATE, f"round {update.round} is closed")
    if update.id != announced.id:
        raise RejectedUpdateError("round", f"there was no such round {update.round}")
    if announced.base.hash != update.base:
        raise RejectedUpdateError("base", "it is a difference to other weights than those of its round")
    if not announced.names(update.device):
        raise RejectedUpdateError("not_chosen", f"{update.device} was not chosen for round {update.round}")


def check_claims(update: UpdateHeader, layout: Layout) -> None:
    """Refuse what is out of bounds before any of it is held: samples and size."""
    if update.samples < 1:
        raise RejectedUpdateError("samples", f"{update.samples} samples, expected at least 1")
    if update.bytes > largest(layout):
        raise RejectedUpdateError("size", f"{update.bytes} bytes, at most {largest(layout)} are taken")


def admit(update: UpdateHeader, blob: bytes, layout: Layout, settings: RoundSettings) -> Admitted:
    """Check an update, whose line and blob these are, and lay it out; `settings` are those of its round.

    Raises RejectedUpdateError with the reason: `samples`, `size`, `damaged`, `shapes`, `not_finite` or
    `norm`.
    """
    check_claims(update, layout)
    coded = _unpacked(update, blob, largest(layout))
    check_shapes(coded, layout)
    row, most = layout.row(coded), settings.clip_norm
    norm = _norm(layout.change(row))
    if norm > MAX_NORM * most:
        raise RejectedUpdateError("norm", f"its norm is {norm:.3g}, the bound {most:.3g}")
    return Admitted(row, norm, 1.0 if norm <= ROUNDING * most else most / norm)


def _unpacked(update: UpdateHeader, blob: bytes, limit: int) -> Mapping[str, Coded]:
    if len(blob) != update.bytes or hashlib.sha256(blob).hexdigest() != update.sha256:
        raise RejectedUpdateError("damaged", "size or hash are not those that its line names")
    try:
        return unpack_coded(blob, limit)
    except CorruptError as problem:
        raise RejectedUpdateError("damaged", problem.what) from None


def check_shapes(coded: Mapping[str, Coded], layout: Layout) -> None:
    """Refuse tensors that the model does not have, or not in that shape: length 1 would go with any."""
    for name, tensor in coded.items():
        expected = layout.by_name.get(name)
        found = tensor.values.shape
        if expected is None or found != expected:
            raise RejectedUpdateError("shapes", f"{name!r} has shape {found}, expected {expected}")
        scale = None if tensor.scale is None else tensor.scale.shape
        if tensor.values.dtype != np.int8 or scale not in ((), expected[:1] if len(expected) > 1 else ()):
            raise RejectedUpdateError("shapes", f"{name!r} is {tensor.values.dtype} with scales {scale}")


def _norm(change: Floats) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        norm = math.sqrt(float(np.square(change, dtype=np.float64).sum()))  # without the threads of BLAS
    if not math.isfinite(norm):
        raise RejectedUpdateError("not_finite", "it holds numbers that are not finite")
    return norm
