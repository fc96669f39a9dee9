"""A pytest plugin: what only the training build can do is recorded on one machine and replayed on another.

That is building a bundle, and the losses of the native engine. With EDGED_TEST_RECORD both are done and kept
in that folder, in the order in which each test asked for them; with EDGED_TEST_REPLAY they are taken from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from edged.bundles import build as building
from edged.storage.models.bundles import Bundle
from tests.stock import losses as measuring

RECORD, REPLAY = (os.environ.get(name) for name in ("EDGED_TEST_RECORD", "EDGED_TEST_REPLAY"))

_asked: Counter[str] = Counter()
_build, _losses = building.build, measuring.losses


def _next(folder: str) -> Path:
    """Where the next result of the running test lies."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    _asked[test] += 1
    return Path(folder) / hashlib.sha256(test.encode()).hexdigest()[:16] / str(_asked[test])


def _recorded(place: Path) -> Path:
    if not place.exists():
        pytest.fail("this was not recorded: select the same tests on both machines")
    return place


def _record_build(model: Any, out: Path, **order: Any) -> Bundle:
    built = _build(model, out, **order)
    assert RECORD is not None
    shutil.copytree(out, _next(RECORD))
    return built


def _replay_build(model: Any, out: Path, **order: Any) -> Bundle:
    del model, order
    assert REPLAY is not None
    shutil.copytree(_recorded(_next(REPLAY)), out)
    return Bundle.open(out)


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
    found: list[float] = json.loads(_recorded(_next(REPLAY)).read_text())
    return found


# Before any test module has taken these names from their modules.
if RECORD:
    building.build, measuring.losses = _record_build, _record_losses
elif REPLAY:
    building.build, measuring.losses = _replay_build, _replay_losses


@pytest.hookimpl(tryfirst=True)
def pytest_ignore_collect() -> bool | None:
    """Collect what is left out where bundles cannot be built: here they need not be."""
    return False if REPLAY else None
