"""Payloads that a broken sensor, a broken network or an attacker might send, from a seed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence

Mutator = Callable[[random.Random, bytes], bytes]

NUMBERS = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-400", "-0", "3.5e38", "9" * 400, "9" * 4290,
    "9" * 5000, "0." + "3" * 3000, "true", "null", '"1"', "[]", "{}", "[1]", "0x10", "1_000", "01", "+1",
    ".5", "1.", "--1", "1e", "18446744073709551616", "1700000000000000",
)  # fmt: skip
TOKENS = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud800", b"\x00", b"\xff\xfe",
    b"\xef\xbb\xbf", b"\xc0\xaf", b"\xed\xa0\x80", b"\r\n", b"//", b"/*", b"'", b'{"x": ', b"null",
    b"\xe2\x80\xae",
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NAME = re.compile(rb'"([a-z.]+)"\s*:')


def _flip(rng: random.Random, payload: bytes) -> bytes:
    changed = bytearray(payload)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(rng: random.Random, payload: bytes) -> bytes:
    return payload[: rng.randrange(len(payload))]


def _drop(rng: random.Random, payload: bytes) -> bytes:
    start = rng.randrange(len(payload))
    return payload[:start] + payload[start + rng.randint(1, 12) :]


def _repeat(rng: random.Random, payload: bytes) -> bytes:
    start, times = rng.randrange(len(payload)), rng.choice((2, 3, 50))
    part = payload[start : start + rng.randint(1, 30)]
    return payload[:start] + part * times + payload[start:]


def _insert(rng: random.Random, payload: bytes) -> bytes:
    start = rng.randrange(len(payload))
    return payload[:start] + rng.choice(TOKENS) + payload[start:]


def _replace_number(rng: random.Random, payload: bytes) -> bytes:
    found = list(_NUMBER.finditer(payload))
    if not found:
        return payload
    match = rng.choice(found)
    return payload[: match.start()] + rng.choice(NUMBERS).encode() + payload[match.end() :]


def _rename(rng: random.Random, payload: bytes) -> bytes:
    found = list(_NAME.finditer(payload))
    if not found:
        return payload
    match, other = rng.choice(found), rng.choice(found)
    name = rng.choice((other[1], b"", b"x" * 300, b"__proto__", "\u00e9".encode(), b"\\u0000"))
    return payload[: match.start(1)] + name + payload[match.end(1) :]


def _nest(rng: random.Random, payload: bytes) -> bytes:
    depth = rng.choice((5, 100, 900, 1100, 20_000))
    opened = rng.choice((b"[", b'{"x":'))
    return opened * min(depth, 60_000 // len(opened)) + (payload if rng.random() < 0.5 else b"")


def _swell(rng: random.Random, payload: bytes) -> bytes:
    """Longer by far: a little below and above the largest size that is taken."""
    size = rng.choice((1000, 60_000, 65_000, 70_000))
    return payload[:-1] + b', "pad": "' + b"a" * size + b'"}'


def _noise(rng: random.Random, payload: bytes) -> bytes:
    return rng.randbytes(rng.randint(0, 200))


def _encode(rng: random.Random, payload: bytes) -> bytes:
    text = payload.decode(errors="replace")
    return text.encode(rng.choice(("utf-16", "utf-32", "utf-8-sig", "utf-7")))


def _same(_: random.Random, payload: bytes) -> bytes:
    return payload


# The long ones are rare, as they are on the way of a million messages.
MUTATORS: tuple[tuple[Mutator, int], ...] = (
    (_flip, 20), (_cut, 10), (_drop, 10), (_repeat, 10), (_insert, 15), (_replace_number, 15), (_rename, 8),
    (_nest, 2), (_swell, 1), (_noise, 6), (_encode, 3), (_same, 5),
)  # fmt: skip
_KINDS = [mutator for mutator, _ in MUTATORS]
_WEIGHTS = [weight for _, weight in MUTATORS]


class Mutations:
    """An endless source of payloads: messages that were good before something happened to them.

    Messages are objects, which are written as JSON, or payloads as they are.
    """

    def __init__(self, messages: Sequence[dict[str, object] | bytes], seed: int) -> None:
        self._good = [m if isinstance(m, bytes) else json.dumps(m).encode() for m in messages]
        self._rng = random.Random(seed)

    def take(self, n: int) -> list[bytes]:
        """The next `n` payloads."""
        rng = self._rng
        return [mutate(rng, rng.choice(self._good)) for mutate in rng.choices(_KINDS, weights=_WEIGHTS, k=n)]
