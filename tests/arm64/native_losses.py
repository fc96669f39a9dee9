"""A pytest plugin: the native engine's losses are recorded on one machine and replayed on another.

No other machine than x86-64 has that engine. With EDGED_TEST_RECORD the losses are measured and kept in that
folder, in the order in which each test asked for them; with EDGED_TEST_REPLAY they are taken from it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.stock import losses as measuring

RECORD, REPLAY = (os.environ.get(name) for name in ("EDGED_TEST_RECORD", "EDGED_TEST_REPLAY"))

_asked: Counter[str] = Counter()
_losses = measuring.losses


def _next(folder: str) -> Path:
    """Where the next result of the running test lies."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    _asked[test] += 1
    return Path(folder) / hashlib.sha256(test.encode()).hexdigest()[:16] / str(_asked[test])


def _record_losses(name: str, bundle: Path, batches: Path) -> list[float]:
    found = _losses(name, bundle, batches)
    assert RECORD is not None
    place = _next(RECORD)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(found))
    return found


def _replay_losses(name: str, bundle: Path, batches: Path) -> list[float]:
    del name, bundle, batches
    assert REPLAY is not None
    place = _next(REPLAY)
    if not place.exists():
        pytest.fail("this was not recorded: select the same tests on both machines")
    found: list[float] = json.loads(place.read_text())
    return found


# Before any test module has taken the name from its module.
if RECORD:
    measuring.losses = _record_losses
elif REPLAY:
    measuring.losses = _replay_losses
