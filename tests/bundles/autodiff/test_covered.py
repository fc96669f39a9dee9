"""Every rule has a case that judges have seen."""

from __future__ import annotations

import importlib
from pathlib import Path

from edged.bundles.autodiff import reverse  # noqa: F401  it registers the rules
from edged.bundles.autodiff.registry import BACKWARD, FORWARD
from edged.bundles.autodiff.rules.losses import ROW_MEAN

FILES = sorted(path for path in Path(__file__).parent.glob("test_*.py") if path.name != Path(__file__).name)
# A ReduceMean over rows, which `mark` turns into it: in test_losses.py.
INNER = {ROW_MEAN}


def judged() -> set[str]:
    """Operators in the cases of all families."""
    modules = [importlib.import_module(f"{__package__}.{path.stem}") for path in FILES]
    return {operator for module in modules for case in module.CASES for operator in case.operators}


def test_every_operator_with_a_rule_is_judged() -> None:
    found = judged()
    assert sorted((set(BACKWARD) | set(FORWARD)) - found - INNER) == []
    assert len(found) > 80
