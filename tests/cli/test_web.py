"""`edged web`: what a person sees, with no daemon running."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from edged.clock import SystemClock
from edged.config import WebConfig
from edged.device.web.http.sockets import FILE, Sockets, fingerprint, own_certificate
from edged.errors import ConfigError
from edged.storage.web_access import Pairing
from tests.commands import edged


def configured(folder: Path, web: object) -> Path:
    path = folder / "edged.yaml"
    values = {"device": {"id": "rig"}, "stream": {"topic": "s", "features": 2, "classes": 2}, "web": web}
    path.write_text(yaml.safe_dump(values))
    return path


def test_a_code_is_shown_with_all_that_a_person_needs(tmp_path: Path) -> None:
    config = configured(tmp_path, {"listen": "0.0.0.0:8443"})
    state = tmp_path / "state"
    state.mkdir()
    Sockets(WebConfig.model_validate({"listen": "0.0.0.0:8443"}), state)
    done = edged("web", "pair", "--label", "--name", "kitchen", str(config))
    assert done.code == 0, done.err
    code = re.search(r"^code +([2-9A-Z]{4}-[2-9A-Z]{4}) +\(.*read and label\)$", done.out, re.MULTILINE)
    assert code is not None
    assert "https://" in done.out
    assert fingerprint(state / FILE) in done.out
    assert "ssh -L 8443:127.0.0.1:8443" in done.out
    cookie = Pairing(state, SystemClock()).redeem(code[1])
    assert cookie is not None
    assert re.search(r"1 +kitchen +infer, read", edged("web", "sessions", str(config)).out)
    assert edged("web", "forget", str(config), "7").code == 3
    assert edged("web", "forget", str(config)).code == 2
    assert edged("web", "forget", str(config), "1").out == "1 logged out\n"


def test_without_the_page_there_is_nothing_to_pair(tmp_path: Path) -> None:
    done = edged("web", "pair", str(configured(tmp_path, None)))
    assert done.code == 2
    assert "add `web: {}`" in done.err


@pytest.mark.parametrize("damage", ["nothing", "cut", "key of another"])
def test_a_damaged_certificate_of_the_devices_own_is_made_again(tmp_path: Path, damage: str) -> None:
    config = WebConfig.model_validate({"listen": "0.0.0.0:0"})
    assert Sockets(config, tmp_path).certificate is not None
    whole = (tmp_path / FILE).read_text()
    assert Sockets(config, tmp_path).certificate is not None
    assert (tmp_path / FILE).read_text() == whole, "one that is whole stays"
    certificate = whole[whole.index("-----BEGIN CERTIFICATE-----") :]
    (tmp_path / "other").mkdir()
    other = own_certificate(config, tmp_path / "other").read_text()
    key = other[: other.index("-----BEGIN CERTIFICATE-----")]
    damaged = {"nothing": "nothing", "cut": whole[:700], "key of another": key + certificate}
    (tmp_path / FILE).write_text(damaged[damage])
    assert Sockets(config, tmp_path).certificate is not None
    assert (tmp_path / FILE).read_text() not in (whole, damaged[damage])
    assert Sockets(WebConfig(), tmp_path).certificate is None


def test_no_socket_is_open_to_the_network_without_a_certificate() -> None:
    with pytest.raises(ConfigError, match="from outside"):
        Sockets(WebConfig.model_validate({"listen": "0.0.0.0:0"}))
