"""The AppArmor profile: the parser compiles it, and it leads nowhere that the unit does not."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "deploy/apparmor/edged"
DATA = {"/var/lib/edged{,@*}/**", "/tmp/**"}  # noqa: S108  patterns of the profile


def rules(right: str) -> list[str]:
    """Paths that the profile gives a right to."""
    found = re.findall(r"(?m)^  (?:owner )?([/@]\S+) ([a-z]+),$", PROFILE.read_text())
    return [path for path, rights in found if right in rights]


def test_the_parser_compiles_it() -> None:
    parser = shutil.which("apparmor_parser", path="/usr/sbin:/sbin:/usr/bin")
    if parser is None:
        pytest.skip("apparmor_parser is not installed")
    done = subprocess.run([parser, "-Q", "-K", str(PROFILE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_written_is_never_executed() -> None:
    written, executed = rules("w"), [*rules("x"), *rules("m")]
    assert set(written) >= DATA
    assert not set(written) & set(executed)
    assert all(path.startswith(("/opt/edged/", "/usr/")) for path in executed)
    for data in DATA:
        assert f"deny {data} mx," in PROFILE.read_text()
