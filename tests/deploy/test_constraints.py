"""The hash-pinned files: complete for every interpreter and machine, and what the table of boards shows."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomllib")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def program() -> Any:
    """The program that makes them."""
    spec = spec_from_file_location("make_wheel_table", ROOT / "docs" / "make_wheel_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


MAKER = program()


@pytest.mark.parametrize("target", MAKER.TARGETS, ids=lambda t: f"{t.python}-{t.machine}")
@pytest.mark.parametrize("name", MAKER.FILES)
def test_every_dependency_is_pinned_in_a_version_that_is_allowed(name: str, target: Any) -> None:
    pinned = {
        one.partition("==")[0]: one.partition("==")[2]
        for one in MAKER.applying(ROOT / "deploy" / name, target)
    }
    extras = [line for extra in MAKER.FILES[name] for line in PROJECT["optional-dependencies"][extra]]
    environment = target.environment | {"sys_platform": "linux"}
    wanted = [Requirement(line) for line in (*PROJECT["dependencies"], *extras)]
    wanted = [one for one in wanted if one.marker is None or one.marker.evaluate(environment)]
    assert len(wanted) > 8
    assert [str(one) for one in wanted if not one.specifier.contains(pinned.get(one.name, "0"))] == []
    assert not pinned.keys() & {"torch", "scipy", "pandas"}
    runtimes = [one for one in pinned if one.startswith("onnxruntime")]
    assert len(runtimes) == 1
    assert "onnx" in pinned, "the first start builds a bundle"


def test_the_supported_interpreters_are_the_same_everywhere() -> None:
    oldest, *_, newest = MAKER.SYSTEMS
    wanted = [f"3.{minor}" for minor in range(int(oldest[2:]), int(newest[2:]) + 1)]
    assert list(MAKER.SYSTEMS) == wanted
    assert [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: 3." in line] == wanted
    beyond = f"3.{int(newest[2:]) + 1}"
    assert PROJECT["requires-python"] == f">={oldest},<{beyond}"


@pytest.mark.parametrize("name", MAKER.FILES)
def test_every_package_has_hashes(name: str) -> None:
    rows = MAKER.read(ROOT / "deploy" / name)
    assert len(rows) > 20
    assert [
        str(one)
        for one, hashes in rows
        if not all(re.fullmatch("[0-9a-f]{64}", h) for h in hashes) or not hashes
    ] == []


def test_the_table_has_the_versions_of_the_file() -> None:
    text = MAKER.PAGE.read_text(encoding="utf-8").partition(MAKER.BEGIN)[2].partition(MAKER.END)[0]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.strip().splitlines()][
        2:
    ]
    shown = {
        python: {row[0].strip("`"): row[i + 1].split()[0] for row in rows}
        for i, python in enumerate(MAKER.SYSTEMS)
    }
    for target in (t for t in MAKER.TARGETS if t.machine == "aarch64"):
        pinned = dict(one.split("==") for one in MAKER.applying(ROOT / "deploy" / "constraints.txt", target))
        assert {name: version for name, version in shown[target.python].items() if version != "–"} == pinned


def test_markers_hold_on_their_targets_and_on_no_other() -> None:
    some = set(MAKER.TARGETS[:3])
    marker = Requirement(f"x ; {MAKER.marker_of(some)}").marker
    assert marker is not None
    assert {t for t in MAKER.TARGETS if marker.evaluate(t.environment)} == some
    assert MAKER.marker_of(set(MAKER.TARGETS)) == ""
