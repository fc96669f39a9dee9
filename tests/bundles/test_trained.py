"""Models that PyTorch exported and trained: the engines come to the same weights and statistics."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.errors import BundleError
from tests.bundles.trained import CASES, OPTIMIZERS, PORTABLE, Case, compare
from tests.installed import needs_native

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
    compare(case, EXPORTED, optimizer, case.bundle(EXPORTED, optimizer, tmp_path / "b", name))


@needs_native
@pytest.mark.parametrize("case", [case for case in CASES if case.engines == PORTABLE], ids=lambda c: c.name)
def test_the_native_engine_refuses_what_it_cannot_train(tmp_path: Path, case: Case) -> None:
    with pytest.raises(BundleError):
        case.bundle(EXPORTED, "sgd", tmp_path / "b", "native")
