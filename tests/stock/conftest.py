"""Environments and bundles for the tests on stock onnxruntime.

Bundles are prepared with the training build; where it does not exist, these tests are not collected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edged.engines.native import api
from tests.stock.environments import Environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

collect_ignore = [] if api.available() else ["test_stock.py"]


@pytest.fixture(params=["oldest", "newest"])
def stock(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Environment]:
    """Each environment in turn; nothing that ran in it may have asked for a training package."""
    record = tmp_path / "imports"
    record.touch()
    yield Environment.find(request.param, record)
    assert record.read_text() == "", "imported without need on a device"


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for 8 features and 2 classes."""
    from tests.stock.bundles import classifier

    return classifier(tmp_path_factory.mktemp("prepared") / "bundle").path


@pytest.fixture(scope="session")
def demo_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for the demo's plant."""
    from tests.stock.bundles import for_the_demo

    return for_the_demo(tmp_path_factory.mktemp("demo") / "bundle").path


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[float]]]:
    """A folder of bundles with their batches, and the losses of the native engine on them."""
    from tests.stock.bundles import references

    folder = tmp_path_factory.mktemp("compared")
    return folder, references(folder)
