"""Bundles of the zoo, made once a session.

Where the training build of onnxruntime does not exist, what needs it is not collected.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.storage.models.bundles import Bundle
    from tests.zoo import Entry

    ZooBundle = Callable[[Entry, str], Bundle]

NEEDS_TRAINING = [
    "test_agreement.py",
    "test_choice.py",
    "test_contract.py",
    "test_misuse.py",
    "test_native.py",
    "test_optimizers.py",
    "test_portable.py",
    "test_portable_checkpoint.py",
    "test_portable_guide.py",
    "test_portable_noise.py",
    "test_resume.py",
    "test_steps.py",
    "test_units.py",
]


@pytest.fixture(scope="session")
def zoo_bundle(tmp_path_factory: pytest.TempPathFactory) -> ZooBundle:
    """The tiny bundle of an entry with an optimizer. Engines only read it."""

    @cache
    def made(entry: Entry, optimizer: str) -> Bundle:
        return entry.bundle(tmp_path_factory.mktemp(entry.name) / "b", optimizer=optimizer)

    return made
