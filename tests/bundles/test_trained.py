"""Models that PyTorch exported and trained: the engines come to the same weights and statistics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bundles.trained import CASES, OPTIMIZERS, Case, compare
from tests.installed import ENGINES

EXPORTED = Path(__file__).parent / "exported"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("case", "name"),
    [(case, name) for case in CASES for name in case.engines],
    ids=lambda part: getattr(part, "name", part),
)
def test_the_weights_are_pytorchs_after_1_and_10_steps(
    tmp_path: Path, case: Case, name: str, optimizer: str
) -> None:
    bundle = case.bundle(EXPORTED, optimizer, tmp_path / "b")
    assert set(bundle.engines) == {*case.engines} & {*ENGINES}
    compare(case, EXPORTED, name, optimizer, bundle)
