"""JSON files that carry their own sha256, so that any changed bit is noticed when they are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from edged.domain.training.message import Message
from edged.errors import CorruptError, TrainingError

M = TypeVar("M", bound=Message)

SEAL = "seal"


def seal(values: Mapping[str, Any]) -> bytes:
    """JSON that carries its own sha256, so that any changed bit is noticed by `unseal`.

    >>> unseal(seal({"version": 7}), "here")
    {'version': 7}
    """
    # Through JSON once: tuples become lists and keys become text before anything is hashed.
    plain = json.loads(json.dumps(dict(values)))
    plain[SEAL] = hashlib.sha256(_canonical(plain)).hexdigest()
    return _canonical(plain)


def unseal(data: bytes, where: Path | str) -> Mapping[str, Any]:
    """What was given to `seal`; CorruptError when a single bit is different."""
    try:
        values = json.loads(data)
        found = values.pop(SEAL) if isinstance(values, dict) else None
    except (ValueError, KeyError, RecursionError):
        found = None
    if found is None or found != hashlib.sha256(_canonical(values)).hexdigest():
        raise CorruptError("the file is damaged: its seal does not fit", where=str(where))
    # The seal covers the values; this covers spaces, escapes and repeated keys.
    if _canonical({**values, SEAL: found}) != data:
        raise CorruptError("the file is damaged: it is not in the form it was written in", where=str(where))
    return dict(values)


def read_sealed(path: Path) -> Mapping[str, Any]:
    """Read a sealed file; CorruptError when it is missing or damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CorruptError("the file is missing", where=str(path)) from None
    except OSError as problem:
        raise CorruptError(f"cannot be read: {problem.strerror}", where=str(path)) from problem
    return unseal(data, path)


def read_message(path: Path, kind: type[M]) -> M:
    """Read a sealed file that holds a message; CorruptError when it is missing, damaged or holds another."""
    try:
        return kind.from_json(read_sealed(path))
    except TrainingError as problem:
        raise CorruptError(f"no {kind.__name__}: {problem.line()}", where=str(path)) from problem


def _canonical(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, sort_keys=True, indent=1) + "\n").encode()
