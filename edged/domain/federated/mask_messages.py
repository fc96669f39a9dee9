"""What devices and coordinator say of masks: a line of JSON, and bytes behind it.

mask/<round>/<device>/join      a device's two public keys
peers/<round>/<device>/roster   who its neighbours are, with theirs
mask/<round>/<device>/shares    for each neighbour an encrypted share of both secrets
peers/<round>/<device>/shares   those that are for it: with whom it masks
peers/<round>/<device>/unmask   whose update has come and whose has not
mask/<round>/<device>/unmask    its shares of the masks of the former, and of the keys of the latter
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

from edged.domain.federated.masking import SHARE_BYTES
from edged.domain.json_fields import (
    MALFORMED,
    Count,
    JsonFields,
    Token,
    read_dataclass,
    read_object,
)
from edged.errors import RejectedUpdateError

JOIN, SHARES, UNMASK, ROSTER = "join", "shares", "unmask", "roster"
STEPS = (JOIN, SHARES, UNMASK)  # on which devices send
KEY_BYTES = 32
SEALED_BYTES = 2 * SHARE_BYTES + 16
LONGEST_LINE = 16 * 1024


@dataclass(frozen=True)
class Named:
    """The line of a message that carries bytes for some devices, in this order."""

    id: Token  # of the round
    names: Annotated[tuple[str, ...], JsonFields.names]
    count: Count = 0  # with a roster: devices of the round


@dataclass(frozen=True)
class UnmaskRequest:
    """Of a device and its neighbours: whose update is in the sum, and whose is not though it shared keys."""

    id: Token
    survived: Annotated[tuple[str, ...], JsonFields.names]
    dropped: Annotated[tuple[str, ...], JsonFields.names]

    def payload(self) -> bytes:
        """Encode the message as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def read(cls, payload: bytes) -> UnmaskRequest:
        """From what came; RejectedUpdateError when it is not as described."""
        return read_dataclass(cls, read_object(payload, LONGEST_LINE, UNMASK))


def mask_purpose(token: str) -> bytes:
    """What two devices agree on a mask for."""
    return f"edged mask {token} ".encode()


def share_purpose(token: str, sender: str) -> bytes:
    """What two devices agree on a key for, which encrypts the shares that `sender` gives the other."""
    return f"edged share {token} {sender} ".encode()


def packed(token: str, bodies: Mapping[str, bytes], count: int = 0) -> bytes:
    """Bytes of equal length for some devices."""
    header = {"id": token, "names": list(bodies), "count": count}
    line = json.dumps(header, separators=(",", ":")).encode()
    return line + b"\n" + b"".join(bodies.values())


def unpacked(payload: bytes, size: int, what: str) -> tuple[Named, dict[str, bytes]]:
    """The line, and `size` bytes by name; RejectedUpdateError when it is not as described."""
    line, _, body = payload.partition(b"\n")
    header = read_dataclass(Named, read_object(line, LONGEST_LINE, what))
    if len(body) != size * len(header.names):
        said = f"{len(body)} bytes for {len(header.names)} devices, {size} each are expected"
        raise RejectedUpdateError(MALFORMED, said, where=what)
    return header, dict(zip(header.names, _pieces(body, size), strict=True))


def _pieces(body: bytes, size: int) -> Sequence[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]
