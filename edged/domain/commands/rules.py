"""Rules about commands: what makes one the same again, and how old it may be."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edged.domain.json_fields import JsonObject
from edged.errors import ConfigError, EdgedError, RefusedError

Request = Mapping[str, Any]
"""The fields of a request: any JSON, of which `edged.domain.messages.requests` has the schemas."""
Answer = JsonObject
State = Literal["accepted", "executing", "successful", "failed", "refused"]
OPEN = ("accepted", "executing")

ENVELOPE = ("transaction", "ts", "expires", "nonce", "signature", "signed_by")
"""Fields that are about a command, not for it; but `ts` beside `label` is the sample's."""

CLOCK_SET = 1_704_067_200.0
"""The begin of 2024: an earlier wall clock has not been set since the device was switched on."""

AHEAD = 300.0
"""Seconds by which the clocks of asker and device may differ."""

MAX_PAYLOAD = 64 * 1024
LONGEST_TRANSACTION = 256
"""Characters of a transaction, as JSON."""


# ---- what comes and what goes ----------------------------------------------------------------


def parse(payload: bytes) -> Request:
    """The fields of a request; an empty payload is an empty request.

    Raises ConfigError when it is no JSON object, or its transaction is too long.
    """
    if len(payload) > MAX_PAYLOAD:
        raise ConfigError(f"a command may have {MAX_PAYLOAD} bytes, this one has {len(payload)}")
    if not payload.strip():
        return {}
    try:
        fields = json.loads(payload, parse_constant=_no_number, parse_float=_finite, parse_int=_integer)
        json.dumps(fields, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as problem:
        raise ConfigError("the command is not JSON", remedy='send {} or {"transaction": "1"}') from problem
    if not isinstance(fields, dict):
        raise ConfigError("the command is not a JSON object", remedy='send {} or {"transaction": "1"}')
    _check_transaction(fields)
    return fields


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is out of range")
    return value


def _integer(text: str) -> int:
    value = int(text)
    if abs(value) >= 2**63:
        raise ValueError(f"{text[:20]} is out of range")
    return value


def _check_transaction(request: Request) -> None:
    size = len(json.dumps(request.get("transaction")))
    if size > LONGEST_TRANSACTION:
        raise ConfigError(f"it has {size} characters, {LONGEST_TRANSACTION} at most", where="transaction")


def answer_of(state: State, outcome: Answer | EdgedError, request: Request) -> Answer:
    """The answer to a request; `outcome` is data, or what went wrong.

    >>> answer_of("successful", {"pong": True}, {"transaction": 7})
    {'status': 'ok', 'state': 'successful', 'data': {'pong': True}, 'transaction': 7}
    """
    if isinstance(outcome, EdgedError):
        reason = "refused" if isinstance(outcome, RefusedError) else "failed"
        answer: dict[str, object] = {
            "status": "error",
            "state": state,
            "error": outcome.line(),
            "reason": reason,
        }
    else:
        answer = {"status": "ok", "state": state, "data": outcome}
    if "transaction" in request:
        answer["transaction"] = request["transaction"]
    return answer


# ---- which one it is -------------------------------------------------------------------------


def identity(name: str, request: Mapping[str, Any], correlation: bytes | None) -> str | None:
    """What a command is known by when it comes again; None when nothing names it.

    That is its `transaction`, or else the correlation data of MQTT 5, each under the command's name.

    >>> identity("train", {"transaction": "t1"}, b"x"), identity("train", {}, None)
    ('train:"t1"', None)
    """
    transaction = request.get("transaction")
    if transaction is not None:
        return f"{name}:{canonical(transaction)}"
    if correlation:
        return f"{name}:{hashlib.sha256(correlation).hexdigest()}"
    return None


def canonical(value: Any) -> str:
    """JSON in one form: keys sorted, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def arguments(name: str, request: Request) -> Request:
    """A request without its envelope: the arguments of the command.

    >>> arguments("train", {"transaction": 1, "expires": 2.0, "steps": 5})
    {'steps': 5}
    """
    kept = ("ts",) if name == "label" and "label" in request else ()
    return {field: value for field, value in request.items() if field not in ENVELOPE or field in kept}


def digest(name: str, request: Mapping[str, Any]) -> str:
    """What tells a command that comes again from another one under the same transaction."""
    return hashlib.sha256(canonical([name, arguments(name, request)]).encode()).hexdigest()


# ---- whether it may be carried out -------------------------------------------------------------


@dataclass(frozen=True)
class Freshness:
    """How old a command may be, in seconds; None for any age.

    A device whose clock has not been set cannot judge ages: it refuses what has an `expires`, since nobody
    could promise that it is kept, and passes over `ts`.
    """

    max_age: float | None

    def check(self, name: str, request: Mapping[str, Any], now: float, horizon: float = 0.0) -> None:
        """Refuse a command that comes too late.

        `name` and `request`: the command. `now`: Unix seconds by the device's clock. `horizon`: when the
        newest command came that is not remembered any more: what was sent before cannot be told from a
        replay. Raises RefusedError when it has expired, is too old, or from the future; ConfigError when its
        times are no Unix seconds.
        """
        expires = _seconds(request, "expires")
        clock_set = now >= CLOCK_SET
        if expires is not None and not clock_set:
            raise RefusedError(
                "the device's clock is not set", where="expires", remedy="send it without, or set the clock"
            )
        if expires is not None and now >= expires:
            raise RefusedError(f"the command expired {now - expires:.0f} s ago", where="expires")
        sent = None if name == "label" and "label" in request else _seconds(request, "ts")
        if sent is None or not clock_set:
            return
        if sent > now + AHEAD:
            raise RefusedError(
                f"the command is from the future by {sent - now:.0f} s",
                where="ts",
                remedy="compare the clocks",
            )
        if self.max_age is not None and now - sent > self.max_age:
            raise RefusedError(
                f"the command is {now - sent:.0f} s old, {self.max_age:.0f} at most",
                where="ts",
                remedy="send it again",
            )
        if sent <= horizon <= now:
            raise RefusedError(
                "the command is older than what the device remembers of commands",
                where="ts",
                remedy="send it again",
            )


def _seconds(request: Mapping[str, Any], name: str) -> float | None:
    value = request.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{value!r} is no time in Unix seconds", where=name)
    return float(value)
