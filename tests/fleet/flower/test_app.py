"""The Flower apps, their units and the configuration of devices, as far as they need no Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from edged import __version__
from edged.config.loader import load
from edged.errors import ConfigError

FLOWER = Path(__file__).parents[3] / "deploy" / "flower"
SILENT = ("FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1")


def test_apps_have_the_version_of_edged() -> None:
    app, masked = ((FLOWER / folder / "pyproject.toml").read_text() for folder in ("", "secagg"))
    assert all(f'\nversion = "{__version__}"\n' in text for text in (app, masked))
    assert f'dependencies = ["edged-flower=={__version__}"]' in masked


@pytest.mark.parametrize("name", ["superlink", "supernode"])
def test_units_are_silent_and_authenticate(name: str) -> None:
    text = (FLOWER / f"edged-{name}.service").read_text()
    wanted = {
        "superlink": ("--enable-supernode-auth", "--database", "--disable-runtime-dependency-installation",
                      "--ssl-certfile"),
        "supernode": ("--auth-supernode-private-key", "--root-certificates", "edged-socket"),
    }[name]  # fmt: skip
    assert [option for option in (*wanted, *SILENT) if option not in text] == []
    assert "--insecure" not in text


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
