"""Bundles for the whole session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """A classifier of 5 features and 3 classes with neutral input statistics, for each engine."""
    from edged.bundles.graph.templates import mlp
    from edged.bundles.source.standardise import Statistics
    from tests.installed import built_for_each

    folder = tmp_path_factory.mktemp("bundles")
    return built_for_each(mlp(5, 3, (16,)), folder, loss="cross_entropy", standardise=Statistics.identity(5))


@pytest.fixture(scope="session")
def bundle(bundles: dict[str, Bundle]) -> Bundle:
    """The classifier for the portable engine."""
    return bundles["portable"]
