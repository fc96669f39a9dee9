"""Signatures on messages of a coordinator: rounds, with the models that they name by hash, and receipts.

A signature covers the topic, so the root, the fleet and the number of a receipt's round, and the exact bytes:

    edged-fleet-1 <newline> topic <newline> payload with "signature":"" as its last field

and is put between the quotes in Base64. Devices without keys ignore the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from edged.domain.commands.signatures import EMPTY, FIELD, TrustedKeys, with_signature, without_signature

HEADER = b"edged-fleet-1"
_KEY = re.compile("[0-9a-f]{64}")


def message(topic: str, payload: bytes) -> bytes:
    r"""Return the bytes to sign; `payload` has an empty signature.

    >>> message("edged/fl/plant/round", b'{"round":1,"signature":""}')
    b'edged-fleet-1\nedged/fl/plant/round\n{"round":1,"signature":""}'
    """
    return b"\n".join((HEADER, topic.encode(), payload))


def signed(topic: str, payload: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    """A JSON object on a topic with its signature as its last field; `sign` makes the 64 bytes."""
    unsigned = b"".join((payload[:-1], b",", EMPTY, b"}"))
    return with_signature(unsigned, sign(message(topic, unsigned)))


def sealed_to(payload: bytes) -> str | None:
    """The key to which a round asks devices to seal what they send; None for none, or what is no key."""
    values = json.loads(payload)
    key = values.get("seal")
    return key if isinstance(key, str) and _KEY.fullmatch(key) else None


def signer(topic: str, payload: bytes, keys: TrustedKeys) -> Path | None:
    """The key that has signed a payload for this topic; None when it is none of `keys`."""
    try:
        values = json.loads(payload)
    except ValueError:
        return None
    signature = values.get(FIELD) if isinstance(values, dict) else None
    parts = without_signature(payload, signature) if isinstance(signature, str) else None
    return None if parts is None else keys.signer(message(topic, parts[0]), parts[1])
