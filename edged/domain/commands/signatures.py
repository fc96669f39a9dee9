"""Who may send a command: signatures, what they cover, and that each is good once.

A signature covers the exact bytes of the payload, so that no two programs need to agree on how JSON is
written. Its field is empty while it is made: what is signed is

    edged-command-2 <newline> root <newline> device <newline> command <newline> payload with "signature":""

and the signature, in Base64, is then put between the quotes.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from edged.clock import Clock
from edged.domain.commands.rules import parse
from edged.domain.protocols import ValueStore
from edged.errors import ConfigError, RefusedError

HEADER = b"edged-command-2"
FIELD = "signature"
EMPTY = b'"signature":""'
REMEMBERED = 1000
WINDOW = 300.0
"""Seconds by which the time of a signed command may differ from this device's clock."""
SPENT = "signed_commands"  # name of the stored value
LONGEST_ID = 128
IMPORTS = "weights.apply"
"""The command that brings in weights without a signature of their own."""
_SIGN = "sign it as docs/security.md says, or with `edged ctl --sign KEY`"


def message(root: str, device: str, command: str, payload: bytes) -> bytes:
    r"""What is signed; `payload` with an empty signature.

    >>> message("plant", "press-7", "wipe", b'{"ts":1,"signature":""}')
    b'edged-command-2\nplant\npress-7\nwipe\n{"ts":1,"signature":""}'
    """
    return b"\n".join((HEADER, root.encode(), device.encode(), command.encode(), payload))


def with_signature(payload: bytes, signature: bytes) -> bytes:
    """The payload with its signature in the empty field, which is the last one where there are several."""
    head, _, tail = payload.rpartition(EMPTY)
    return b"".join((head, EMPTY[:-1], base64.b64encode(signature), b'"', tail))


def without_signature(payload: bytes, signature: str) -> tuple[bytes, bytes] | None:
    r"""The payload as it was signed, and the signature's bytes; None when they cannot be told apart.

    >>> without_signature(b'{"signature":"AAAA"}', "AAAA")
    (b'{"signature":""}', b'\x00\x00\x00')
    """
    try:
        raw = base64.b64decode(signature, validate=True)
        quoted = b'"%b"' % signature.encode("ascii")
    except (binascii.Error, ValueError):
        return None
    # One form alone: other texts that decode to the same bytes are not taken.
    if base64.b64encode(raw) != quoted[1:-1] or payload.count(quoted) != 1:
        return None
    return payload.replace(quoted, b'""'), raw


class TrustedKeys(Protocol):
    """The public keys that a device trusts."""

    def signer(self, message: bytes, signature: bytes) -> Path | None:
        """Find the key that made the signature of `message`; None if no trusted key did."""


class UsedTransactions:
    """Transactions of accepted signed commands: each is accepted once, across restarts and clock changes.

    A transaction is forgotten if there are too many or it is older than `2 * WINDOW`. Its time is kept: no
    command signed up to that time is accepted later, whatever the clock shows.

    `store` keeps used transactions, which are stored before a command is executed.
    """

    def __init__(self, store: ValueStore) -> None:
        self._store = store
        kept: dict[str, Any] | None = store.get_value(SPENT)
        self._used: dict[str, float] = dict(kept["taken"]) if kept else {}
        self._forgotten: float = kept["forgotten"] if kept else 0.0

    def accept(self, transaction: str, ts: float, now: float) -> bool:
        """Use up a transaction; False if it was used before. Not used up if storing it raises.

        `ts` is the time of the signature and `now` that of this device, both in Unix seconds.
        """
        if transaction in self._used or ts <= self._forgotten:
            return False
        used = self._used | {transaction: ts}
        by_age = sorted(used.items(), key=lambda entry: entry[1])
        old = [entry for entry in by_age if now - entry[1] > 2 * WINDOW]
        gone = by_age[: max(len(old), len(by_age) - REMEMBERED)]
        forgotten = max([self._forgotten, *(when for _, when in gone)])
        left = dict(by_age[len(gone) :])
        self._store.set_value(SPENT, {"taken": left, "forgotten": forgotten})
        self._used, self._forgotten = left, forgotten
        return True


@dataclass(frozen=True)
class SigningPolicy:
    """Which keys count for which commands, and which commands need no signature.

    Attributes
    ----------
    keys
        Keys for all commands but `weights.apply`; None where no signature of those counts.
    makers
        Keys for `weights.apply`, which then must be signed; None where it is a command as any other.
    unsigned, unsigned_with_token
        Commands that need no signature, and those that need none over HTTP with a token for control.
    """

    keys: TrustedKeys | None
    makers: TrustedKeys | None
    unsigned: frozenset[str]
    unsigned_with_token: frozenset[str]

    def trusted(self, command: str) -> TrustedKeys | None:
        """Return the keys that count for a command; None if no signature does."""
        return self.makers if command == IMPORTS and self.makers is not None else self.keys

    def needs_signature(self, command: str, *, token: bool) -> bool:
        """Return whether a command is refused without a signature."""
        if command == IMPORTS and self.makers is not None:
            return True
        return command not in (self.unsigned_with_token if token else self.unsigned)


class Authority:
    """Decides whether a command may be executed.

    `root` and `device`: what the topics of this device begin with. `clock` is that of this device. `spent`:
    transactions that were accepted before.
    """

    def __init__(
        self, root: str, device: str, policy: SigningPolicy, *, clock: Clock, spent: UsedTransactions
    ) -> None:
        self._root, self._device = root, device
        self._policy = policy
        self._clock = clock
        self._spent = spent
        self._heard: dict[str, None] = {}  # signatures that were fresh once, oldest first

    def is_fresh(self, command: str, payload: bytes) -> bool:
        """Return whether a trusted key signed a command, the first time that it is seen.

        It uses nothing up and never raises: it says which queue a command joins. An unsigned command costs a
        search in its bytes, a copy of a signed one no check of its signature.
        """
        if b'"signature"' not in payload:
            return False
        try:
            request = parse(payload)
        except ConfigError:
            return False
        signature, ts = request.get(FIELD), _time(request)
        if not isinstance(signature, str) or signature in self._heard or ts is None:
            return False
        if abs(self._clock.now() - ts) > WINDOW or self._signer(command, signature, payload) is None:
            return False
        self._heard[signature] = None
        if len(self._heard) > REMEMBERED:
            del self._heard[next(iter(self._heard))]
        return True

    def authorise(
        self, command: str, request: Mapping[str, object], payload: bytes, *, token: bool = False
    ) -> str | None:
        """Return the name of the key that has signed a command, if it may be executed; call it once.

        None if the command needs no signature and has none. `token`: it came with a token for control.
        Raises RefusedError when it must be signed and is not; or is signed, but not by a trusted key, for
        another root, device or command, at another time, or was accepted before.
        """
        if FIELD not in request:
            if self._policy.needs_signature(command, token=token):
                raise RefusedError("this command must be signed", where=command, remedy=self._remedy(command))
            return None
        if self._policy.trusted(command) is None:
            return None
        signer = self._checked_signer(command, request[FIELD], payload)
        ts, transaction = _time(request), request.get("transaction")
        if ts is None:
            raise RefusedError(
                "a signed command needs its time", where=command, remedy="add ts, in Unix seconds"
            )
        if not isinstance(transaction, str) or not 0 < len(transaction) <= LONGEST_ID:
            remedy = f"add a transaction, a text of its own with at most {LONGEST_ID} characters"
            raise RefusedError("a signed command needs an id", where=command, remedy=remedy)
        now = self._clock.now()
        if abs(now - ts) > WINDOW:
            side = "old" if now > ts else "ahead of this device's clock"
            raise RefusedError(
                f"its signature is {abs(now - ts):.0f} s {side}; {WINDOW:.0f} s are allowed",
                where=command,
                remedy="sign it again; check both clocks",
            )
        if not self._spent.accept(transaction, ts, now):
            remedy = "sign a new one with another transaction"
            raise RefusedError("this signed command was accepted before", where=command, remedy=remedy)
        return signer.name

    def _signer(self, command: str, signature: str, payload: bytes) -> Path | None:
        keys, parts = self._policy.trusted(command), without_signature(payload, signature)
        if keys is None or parts is None:
            return None
        return keys.signer(message(self._root, self._device, command, parts[0]), parts[1])

    def _checked_signer(self, command: str, signature: object, payload: bytes) -> Path:
        parts = without_signature(payload, signature) if isinstance(signature, str) else None
        if parts is None or not isinstance(signature, str):
            raise RefusedError("the signature is not Base64 in its own field", where=command, remedy=_SIGN)
        signer = self._signer(command, signature, payload)
        if signer is not None:
            return signer
        raise RefusedError(
            "the signature does not fit: of another key, root, device or command, or something was changed",
            where=command,
            remedy=f"{self._source(command)} names the keys that count here",
        )

    def _source(self, command: str) -> str:
        return "model.keys" if command == IMPORTS and self._policy.makers is not None else "commands.keys"

    def _remedy(self, command: str) -> str:
        return f"{_SIGN}; {self._source(command)} names the keys that count here"


def _time(request: Mapping[str, object]) -> float | None:
    """When a signed command was signed, Unix seconds; None if it does not say so."""
    ts = request.get("ts")
    if isinstance(ts, bool) or not isinstance(ts, int | float) or not math.isfinite(ts):
        return None
    return float(ts)
