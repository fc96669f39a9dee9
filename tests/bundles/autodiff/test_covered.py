"""Every rule has a case that judges have seen."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from edged.bundles.autodiff import reverse  # noqa: F401  it registers the rules
from edged.bundles.autodiff.rules.losses import ROW_MEAN
from edged.bundles.autodiff.tape import BACKWARD, FORWARD

if TYPE_CHECKING:
    from tests.bundles.autodiff.cases import Case

# The others judge cases of these.
FILES = sorted(
    path
    for path in Path(__file__).parent.glob("test_*.py")
    if path.name not in (Path(__file__).name, "test_opsets.py")
)
# A ReduceMean over rows, which `mark` turns into it: in test_losses.py.
INNER = {ROW_MEAN}


def cases() -> list[Case]:
    """The cases of all families."""
    modules = [importlib.import_module(f"{__package__}.{path.stem}") for path in FILES]
    return [case for module in modules for case in module.CASES]


def judged() -> set[str]:
    """Operators in the cases of all families."""
    return {operator for case in cases() for operator in case.operators}


def test_every_operator_with_a_rule_is_judged() -> None:
    found = judged()
    assert sorted((set(BACKWARD) | set(FORWARD)) - found - INNER) == []
    assert len(found) > 80
