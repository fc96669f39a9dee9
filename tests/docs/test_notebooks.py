"""Notebooks run from the first cell to the last, and are stored without outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.ipynb")))
def test_each_cell_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [
        cell
        for cell in json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)
    monkeypatch.chdir(tmp_path)
    variables: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells, 1):
        exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), variables)  # noqa: S102
    assert variables["fed"].report.metric["accuracy"] > variables["fed"].report.frozen["accuracy"]
    assert variables["own"].metric["accuracy"] > variables["own"].frozen["accuracy"]
