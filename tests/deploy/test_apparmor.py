"""The AppArmor profile grants no more than the unit; `make test-systemd` has its parser compile it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "deploy/apparmor/edged"
DATA = {"/var/lib/edged{,@*}/**", "/tmp/**"}  # noqa: S108  patterns of the profile


def rules(right: str) -> list[str]:
    """Paths that the profile gives a right to."""
    found = re.findall(r"(?m)^  (?:owner )?([/@]\S+) ([a-z]+),$", PROFILE.read_text())
    return [path for path, rights in found if right in rights]


def test_what_is_written_is_never_executed() -> None:
    written, executed = rules("w"), [*rules("x"), *rules("m")]
    assert set(written) >= DATA
    assert not set(written) & set(executed)
    assert all(path.startswith(("/opt/edged/", "/usr/")) for path in executed)
    for data in DATA:
        assert f"deny {data} mx," in PROFILE.read_text()
