"""Rounds over the Unix socket: closed where `fleet.flower` is not set, and what is no round is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from edged.domain.federated.messages import BaseModelInfo, DeviceState, RoundAnnouncement, RoundSettings
from tests.running_device import wait_until

if TYPE_CHECKING:
    from tests.device.web.conftest import Site

pytestmark = pytest.mark.slow

ROUNDS = "/api/fleet/rounds"
TOKEN = "0" * 32
DOORS = [
    ("GET", "/api/fleet/state"),
    ("GET", "/api/fleet/update"),
    ("POST", ROUNDS),
    ("GET", f"{ROUNDS}/{TOKEN}/update"),
    ("GET", f"{ROUNDS}/{TOKEN}/evaluation"),
]


def announced(bundle: str) -> RoundAnnouncement:
    base = BaseModelInfo("a" * 64, 5, 1)
    return RoundAnnouncement("plant", 1, TOKEN, "open", bundle, base, 1.0, 2e9, 0.0, None, RoundSettings())


def body(told: RoundAnnouncement, model: bytes = b"model") -> bytes:
    return told.payload() + b"\n\n" + model


@pytest.mark.parametrize(("method", "path"), DOORS)
def test_there_is_no_door_without_flower(site: Site, method: str, path: str) -> None:
    assert site.unix(method, path).status == 404
    assert site.using("control")(method, path).status == 404


def test_rounds_are_handed_in_and_what_comes_of_them_is_asked_for(member: Site) -> None:
    wait_until(lambda: member.unix("GET", "/api/fleet/state").status == 200)
    state = DeviceState.read(member.unix("GET", "/api/fleet/state").body)
    assert (state.device, state.ready) == ("member", False)
    told = announced(state.bundle)

    asked = member.unix("GET", f"{ROUNDS}/{TOKEN}/update")
    assert (asked.status, "no such round" in asked.json["error"]) == (409, True)
    assert member.unix("GET", "/api/fleet/update").status == 404
    assert member.unix("POST", ROUNDS, b"{}\n\n").status == 400
    foreign = member.unix("POST", ROUNDS, body(replace(told, fleet="other")))
    assert (foreign.status, "fleet other" in foreign.json["error"]) == (409, True)
    assert member.unix("POST", ROUNDS, body(replace(told, bundle="0" * 64))).status == 409
    assert member.unix("POST", ROUNDS, body(told, b"short model")).status == 409

    assert member.unix("POST", ROUNDS, body(told)).status == 202
    wait_until(lambda: member.unix("GET", f"{ROUNDS}/{TOKEN}/update").status == 409)
    declined = member.unix("GET", f"{ROUNDS}/{TOKEN}/update")
    assert "too few new labelled samples" in declined.json["error"]
