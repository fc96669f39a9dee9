"""Environments and bundles for the tests on stock onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from edged.engines.native import api
from tests.stock.environments import Environment


@pytest.fixture(params=[pytest.param("oldest", marks=pytest.mark.full), "newest"])
def stock(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Environment]:
    """Each environment in turn; no process in it may have asked for what it must not load."""
    record = tmp_path / "imports"
    record.touch()
    yield Environment.find(request.param, record)
    assert record.read_text() == "", "imported by a process that must not"


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for 8 features and 2 classes."""
    from tests.stock.bundles import classifier

    return classifier(tmp_path_factory.mktemp("prepared") / "bundle").path


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[float]]]:
    """A folder of bundles with their batches, and what `references` says of their losses."""
    if not api.available() and "EDGED_TEST_REPLAY" not in os.environ:
        pytest.skip("compares with the native engine")
    from tests.stock.bundles import references

    folder = tmp_path_factory.mktemp("compared")
    return folder, references(folder)
