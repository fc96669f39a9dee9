"""What can be said of deploy/container without a container; `make test-container` executes it."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from edged.config.loader import load
from tests.commands import edged
from tests.container.image import instructions

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy" / "container"
LINES = instructions((FILES / "Dockerfile").read_text(encoding="utf-8"))
LAST = LINES[max(i for i, (name, _) in enumerate(LINES) if name == "FROM") :]


def last(name: str) -> str:
    return [rest for word, rest in LAST if word == name][-1]


def test_the_image_runs_without_root_and_is_asked_how_it_is(tmp_path: Path) -> None:
    assert last("USER") == "990:990"
    command = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    assert command == ["edged", "status", "/etc/edged/edged.yaml", "--healthy"]
    path = configuration(tmp_path)
    assert edged("status", path, "--healthy", EDGED_STORAGE__DIR=str(tmp_path)).out.startswith("stopped")
    assert [*json.loads(last("ENTRYPOINT")), *json.loads(last("CMD"))] == [
        "edged",
        "run",
        "/etc/edged/edged.yaml",
    ]
    assert not [rest for word, rest in LAST if word == "RUN" and "pip" in rest], (
        "it is built in another stage"
    )


def configuration(folder: Path) -> Path:
    """The configuration of the page with its certificates in `folder`."""
    text = (FILES / "edged.yaml").read_text(encoding="utf-8")
    for name in ("broker-ca.pem", "device.pem", "device.key"):
        (folder / name).touch()
    path = folder / "edged.yaml"
    path.write_text(text.replace("/etc/edged/", f"{folder}/"), encoding="utf-8")
    return path


def test_what_is_copied_is_sent_and_there() -> None:
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = [rest.split()[:-1] for word, rest in LINES if word == "COPY" and "--from" not in rest]
    names = [name for group in copied for name in group]
    assert names
    assert [name for name in names if f"!{name}" not in sent or not (ROOT / name).exists()] == []


def test_the_services_have_no_privileges_and_the_configuration_is_valid(tmp_path: Path) -> None:
    services = yaml.safe_load((FILES / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service
    sources = [line.split(":")[0] for service in services.values() for line in service["volumes"]]
    mine = [name for name in sources if name.startswith(".") and "certificates" not in name]
    assert mine
    assert [name for name in mine if not (FILES / name).exists()] == []
    config = load(configuration(tmp_path), {})
    assert config.mqtt.host in services
    assert config.mqtt.tls is not None
