"""Whatever bits of the state directory flip, the daemon starts, serves, and says what it lost.

The short form runs with all slow tests, the long one with `make test-faults`; EDGED_FAULTS_TRIES and
EDGED_FAULTS_SEED choose others.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.bit_flips import Campaign, make_state

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker

TRIES = int(os.environ.get("EDGED_FAULTS_TRIES", "2000"))
SEED = int(os.environ.get("EDGED_FAULTS_SEED", "21"))


@pytest.mark.parametrize(
    "tries",
    [
        pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param(TRIES, marks=[pytest.mark.faults, pytest.mark.timeout(14_400)]),
    ],
)
def test_whatever_bits_flip_it_starts_and_serves(broker: Broker, tmp_path: Path, tries: int) -> None:
    whole = make_state(tmp_path / "whole", broker)
    seen = Campaign(whole, tmp_path, broker, SEED).run(range(tries))
    sys.stderr.write(f"{tries} tries: starts that it took {dict(seen.starts)}, {seen.told} said something\n")
    assert not seen.failed, f"{len(seen.failed)} of {tries}\n" + "\n\n".join(seen.failed[:5])
