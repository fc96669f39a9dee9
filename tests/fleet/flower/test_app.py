"""The Flower app, its units and its names, as far as they need no Flower."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from edged.config.loader import load
from edged.errors import ConfigError, StorageError
from edged.fleet.flower.compat import SILENT, VERSION
from edged.fleet.flower.make_app import write_app
from edged.fleet.flower.nodes import NodeNames

if TYPE_CHECKING:
    from typing import Any

ROOT = Path(__file__).parents[3]


def imported(path: Path) -> set[str]:
    """The packages that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.partition(".")[0])
    return found


def test_the_app_on_a_device_needs_flower_alone(tmp_path: Path) -> None:
    write_app(tmp_path / "app", Path("/etc/edged/fleet.yaml"))
    package = tmp_path / "app" / "edged_flower"
    assert imported(package / "client_app.py") - set(sys.stdlib_module_names) == {"flwr"}
    assert imported(package / "server_app.py") - set(sys.stdlib_module_names) == {"flwr", "edged"}
    text = (tmp_path / "app" / "pyproject.toml").read_text()
    assert f'"flwr>={VERSION},' in text
    assert 'fleet-config = "/etc/edged/fleet.yaml"' in text
    assert (tmp_path / "app" / "LICENSE").stat().st_size > 0


def test_the_app_is_written_over_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("work")
    with pytest.raises(StorageError, match="not empty"):
        write_app(tmp_path, Path("fleet.yaml"))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_extra_is_the_version_that_is_asked_for() -> None:
    assert f'flower = ["flwr=={VERSION}"]' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("name", ["superlink", "supernode"])
def test_units_are_silent_and_authenticate(name: str) -> None:
    text = (ROOT / "deploy" / "flower" / f"edged-{name}.service").read_text()
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
        "fleet": {"name": "plant", "flower": True},
    }  # fmt: skip
    path = tmp_path / "edged.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=r"fleet\.flower needs web\.unix_socket"):
        load(path)
    path.write_text(yaml.safe_dump(values | {"web": {"unix_socket": str(tmp_path / "s")}}))
    assert load(path).fleet is not None


@pytest.mark.skipif(find_spec("flwr") is not None, reason="Flower is installed")
def test_without_flower_a_coordinator_says_so_at_its_start(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    reduce = {"how": "flower", "strategy": "FedAdam"}
    path.write_text(yaml.safe_dump({"fleet": "plant", "model": "m.safetensors", "reduce": reduce}))
    done = subprocess.run(
        [sys.executable, "-m", "edged", "fleet", "run", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert f"flwr {VERSION} is needed, here is not installed" in done.stderr
    assert not (tmp_path / "fleet").exists()
