"""Bundles of the zoo, made once a session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle
    from tests.zoo import Entry

    ZooBundle = Callable[[Entry, str], Bundle]


@pytest.fixture(scope="session")
def zoo_bundle(tmp_path_factory: pytest.TempPathFactory) -> ZooBundle:
    """The tiny bundle of an entry with an optimizer. Engines only read it."""

    @cache
    def made(entry: Entry, optimizer: str) -> Bundle:
        return entry.bundle(tmp_path_factory.mktemp(entry.name) / "b", optimizer=optimizer)

    return made
