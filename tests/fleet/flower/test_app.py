"""The Flower app, its units and its names, as far as they need no Flower."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import edged_flower
from edged import __version__
from edged.config.loader import load
from edged.errors import ConfigError
from edged_flower.compat import SILENT, VERSIONS
from edged_flower.nodes import NodeNames

PACKAGE = Path(edged_flower.__file__).parent


def edged(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edged", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def imported(path: Path) -> set[str]:
    """The packages that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.partition(".")[0])
    return found


def test_the_app_on_a_device_needs_flower_alone(capsys: pytest.CaptureFixture[str]) -> None:
    edged_flower.main()
    app = Path(capsys.readouterr().out.strip())
    assert imported(app / "client_app.py") - set(sys.stdlib_module_names) == {"flwr"}
    assert imported(app / "server_app.py") - set(sys.stdlib_module_names) == {"flwr", "edged", "edged_flower"}
    assert (app / "LICENSE").stat().st_size > 0


def test_versions_are_those_that_are_asked_for() -> None:
    distribution = (PACKAGE.parent / "pyproject.toml").read_text()
    app = (PACKAGE / "app" / "pyproject.toml").read_text()
    oldest, newest = VERSIONS[0], [int(number) for number in VERSIONS[-1].split(".")]
    wanted = f"flwr>={oldest},<{newest[0]}.{newest[1] + 1}"
    assert f'dependencies = ["edged=={__version__}", "{wanted}"]' in distribution
    assert f'dependencies = ["{wanted}"]' in app
    assert f'flwr-version-target = "{oldest}"' in app
    assert f'\nversion = "{__version__}"\n' in distribution
    released = re.match(r"\d+\.\d+\.\d+", __version__)
    assert released is not None
    assert f'\nversion = "{released[0]}"\n' in app, "three numbers, also of a release candidate"


@pytest.mark.parametrize("name", ["superlink", "supernode"])
def test_units_are_silent_and_authenticate(name: str) -> None:
    text = (PACKAGE.parent / f"edged-{name}.service").read_text()
    assert all(f"{key}={value}" in text for key, value in SILENT.items())
    wanted = {
        "superlink": ("--enable-supernode-auth", "--database", "--disable-runtime-dependency-installation",
                      "--ssl-certfile"),
        "supernode": ("--auth-supernode-private-key", "--root-certificates", "edged-socket"),
    }[name]  # fmt: skip
    assert [option for option in wanted if option not in text] == []
    assert "--insecure" not in text


def test_a_node_keeps_its_device_and_no_other_takes_its_name(tmp_path: Path) -> None:
    nodes = NodeNames(tmp_path)
    assert nodes.name(2**63) is None
    assert nodes.claimed(2**63, "press") == "press"
    assert nodes.claimed(2**63, "pump") == "press"
    assert nodes.claimed(5, "press") == "node-5"
    again = NodeNames(tmp_path)
    assert (again.name(2**63), again.name(5)) == ("press", None)
    assert again.claimed(5, "pump") == "pump"


def test_a_device_needs_a_socket_for_flower(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "device": {"id": "press"}, "stream": {"topic": "a", "features": 2, "classes": 2},
        "fleet": {"flower": True},
    }  # fmt: skip
    path = tmp_path / "edged.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=r"fleet\.flower needs web\.unix_socket"):
        load(path)
    web = {"web": {"unix_socket": str(tmp_path / "s")}}
    path.write_text(yaml.safe_dump(values | web))
    assert load(path).fleet is not None
    path.write_text(yaml.safe_dump(values | web | {"fleet": {"name": "plant", "flower": True}}))
    with pytest.raises(ConfigError, match=r"with flower, the SuperLink addresses devices: remove name"):
        load(path)
    path.write_text(yaml.safe_dump(values | web | {"fleet": {"train": False}}))
    with pytest.raises(ConfigError, match="name is missing"):
        load(path)
