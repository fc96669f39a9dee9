"""Bundles for the whole session; without the training build what needs one is not collected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edged.engines.native import api

if TYPE_CHECKING:
    from pathlib import Path

    from edged.storage.models.bundles import Bundle

NEEDS_TRAINING = [
    "test_adopt.py",
    "test_bootstrap.py",
    "test_challenger.py",
    "test_choose.py",
    "test_learn.py",
    "test_quantised_runs.py",
    "test_rounds.py",
    "test_train.py",
    "test_train_guide.py",
    "test_train_resume.py",
    "test_train_together.py",
]
collect_ignore = [] if api.available() else NEEDS_TRAINING


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A classifier of 5 features and 3 classes with neutral input statistics."""
    from edged.bundles.build import build
    from edged.bundles.graph.templates import mlp
    from edged.bundles.source.standardise import Statistics

    path: Path = tmp_path_factory.mktemp("bundles") / "classifier"
    return build(mlp(5, 3, (16,)), path, loss="cross_entropy", standardise=Statistics.identity(5))
