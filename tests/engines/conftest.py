"""Bundles of the zoo, made once a session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle
    from tests.zoo import Entry

    ZooBundle = Callable[[Entry, str, str], Bundle]


@pytest.fixture(scope="session")
def zoo_bundle(tmp_path_factory: pytest.TempPathFactory) -> ZooBundle:
    """The tiny bundle of an entry with an optimizer, for an engine, which only reads it."""

    @cache
    def made(entry: Entry, optimizer: str, engine: str) -> Bundle:
        out = tmp_path_factory.mktemp(entry.name) / "b"
        return entry.bundle(out, optimizer=optimizer, engine=engine)

    return made


GATE = ("mlp", "mlp_regression", "mlp_dropout", "cnn1d", "cnn2d", "lstm", "gru", "embedding_bag")
"""Networks on which the gate tries the contract of the engines; full runs try all of the zoo."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the contract on all other networks."""
    for item in items:
        if item.path.name == "test_contract.py" and isinstance(item, pytest.Function):
            entry = item.callspec.params.get("entry") if hasattr(item, "callspec") else None
            if entry is not None and getattr(entry, "name", "") not in GATE:
                item.add_marker("full")
