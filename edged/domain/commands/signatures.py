"""Who may send a command: signatures, what they cover, and that each is good once.

A signature covers the exact bytes of the payload, so that no two programs need to agree on how JSON is
written. Its field is empty while it is made: what is signed is

    edged-command-1 <newline> device <newline> command <newline> payload with "signature":""

and the signature, in Base64, is then put between the quotes.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edged.errors import RefusedError

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.domain.protocols import ValueStore

HEADER = b"edged-command-1"
FIELD = "signature"
EMPTY = b'"signature":""'
REMEMBERED = 1000
SPENT = "signed_commands"  # name of the stored value
LONGEST_ID = 128
_SIGN = "sign it as docs/security.md says, or with `edged ctl --sign KEY`"


def message(device: str, command: str, payload: bytes) -> bytes:
    r"""What is signed; `payload` with an empty signature.

    >>> message("press-7", "wipe", b'{"ts":1,"signature":""}')
    b'edged-command-1\npress-7\nwipe\n{"ts":1,"signature":""}'
    """
    return b"\n".join((HEADER, device.encode(), command.encode(), payload))


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

    A transaction is forgotten if there are too many or it is older than `2 * window`. Its time is kept: no
    command signed up to that time is accepted later, whatever the clock shows.

    `window`: seconds that a signature is good for, before and after its time. `store` keeps used
    transactions, which are stored before a command is executed.
    """

    def __init__(self, window: float, store: ValueStore) -> None:
        self._window = window
        self._store = store
        kept: dict[str, Any] | None = store.get_value(SPENT)
        self._taken: dict[str, float] = dict(kept["taken"]) if kept else {}
        self._forgotten: float = kept["forgotten"] if kept else 0.0

    def accept(self, transaction: str, ts: float, now: float) -> bool:
        """Use up a transaction; False if it was used before. Not used up if storing it raises.

        `ts` is the time of the signature and `now` that of this device, both in Unix seconds.
        """
        if transaction in self._taken or ts <= self._forgotten:
            return False
        taken = self._taken | {transaction: ts}
        by_age = sorted(taken.items(), key=lambda entry: entry[1])
        old = [entry for entry in by_age if now - entry[1] > 2 * self._window]
        gone = by_age[: max(len(old), len(by_age) - REMEMBERED)]
        forgotten = max([self._forgotten, *(when for _, when in gone)])
        left = dict(by_age[len(gone) :])
        self._store.set_value(SPENT, {"taken": left, "forgotten": forgotten})
        self._taken, self._forgotten = left, forgotten
        return True


class Authority:
    """Decides whether a command may be executed.

    `device`: id of this device. `keys`: the trusted keys. `needed`: commands that must be signed; None for
    all of them. `window`: seconds by which the time of a signed command may differ from this device's clock.
    `clock` is that of this device. `spent`: transactions that were accepted before.
    """

    def __init__(
        self,
        device: str,
        *,
        keys: TrustedKeys,
        needed: Collection[str] | None,
        window: float,
        clock: Clock,
        spent: UsedTransactions,
    ) -> None:
        self._device = device
        self._keys = keys
        self._needed = needed
        self._window = window
        self._clock = clock
        self._spent = spent

    def authorise(self, command: str, request: dict[str, Any], payload: bytes) -> str | None:
        """Return the name of the key that signed a command, None for an unsigned one, if it may be executed.

        Call it once, just before that.

        Raises RefusedError when it must be signed and is not; or is signed, but not by a trusted key, for
        another device or command, at another time, or was accepted before.
        """
        if FIELD not in request:
            if self._needed is None or command in self._needed:
                raise RefusedError("this command must be signed", where=command, remedy=_SIGN)
            return None
        signer = self._check_signature(command, request[FIELD], payload)
        ts, transaction = request.get("ts"), request.get("transaction")
        if isinstance(ts, bool) or not isinstance(ts, int | float) or not math.isfinite(ts):
            raise RefusedError(
                "a signed command needs its time", where=command, remedy="add ts, in Unix seconds"
            )
        if not isinstance(transaction, str) or not 0 < len(transaction) <= LONGEST_ID:
            remedy = f"add a transaction, a text of its own with at most {LONGEST_ID} characters"
            raise RefusedError("a signed command needs an id", where=command, remedy=remedy)
        now = self._clock.now()
        if abs(now - ts) > self._window:
            side = "old" if now > ts else "ahead of this device's clock"
            raise RefusedError(
                f"its signature is {abs(now - ts):.0f} s {side}; {self._window:.0f} s are allowed",
                where=command,
                remedy="sign it anew; see whether both clocks are right",
            )
        if not self._spent.accept(transaction, float(ts), now):
            remedy = "sign a new one with another transaction"
            raise RefusedError("this signed command was accepted before", where=command, remedy=remedy)
        return signer.name

    def _check_signature(self, command: str, signature: object, payload: bytes) -> Path:
        parts = without_signature(payload, signature) if isinstance(signature, str) else None
        if parts is None:
            raise RefusedError(
                "the signature is not Base64 in a field of its own", where=command, remedy=_SIGN
            )
        signer = self._keys.signer(message(self._device, command, parts[0]), parts[1])
        if signer is None:
            raise RefusedError(
                "the signature does not fit: of another key, device or command, or something was changed",
                where=command,
                remedy="commands.keys names the keys that count here",
            )
        return signer
