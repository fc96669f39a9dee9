"""Bundles for the whole session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A classifier of 5 features and 3 classes with neutral input statistics."""
    from edged.bundles.build import build
    from edged.bundles.graph.templates import mlp
    from edged.bundles.source.standardise import Statistics

    path: Path = tmp_path_factory.mktemp("bundles") / "classifier"
    return build(mlp(5, 3, (16,)), path, loss="cross_entropy", standardise=Statistics.identity(5))
