"""Tokens, sessions and scopes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from edged.clock import VirtualClock
from edged.device.web.http.authentication import (
    FAILURES,
    LOCAL,
    MOST_ADDRESSES,
    Access,
    Attempts,
    Scope,
    Tokens,
)
from edged.device.web.http.routes import Login, session_of
from edged.errors import ConfigError
from edged.storage.web_access import SESSION_SECONDS, Pairing
from tests.device.web.client import TOKENS, token_files


def files(folder: Path, *scopes: Scope) -> dict[Scope, Path]:
    token_files(folder, scopes)
    return {scope: folder / f"{scope}.token" for scope in scopes}


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1000.0)


def test_a_token_opens_its_scope_and_no_other(tmp_path: Path) -> None:
    tokens = Tokens(files(tmp_path, "read", "infer", "control", "scrape", "ingest"))
    assert tokens.opened(TOKENS["read"]) == {"read"}
    assert tokens.opened(TOKENS["infer"]) == {"infer", "ingest"}
    assert tokens.opened(TOKENS["ingest"]) == {"ingest"}
    assert tokens.opened(TOKENS["control"]) == {"read", "control"}
    assert tokens.opened(TOKENS["scrape"]) == {"scrape"}


@pytest.mark.parametrize(
    "token",
    [
        "",
        TOKENS["read"][:-1],
        TOKENS["read"] + "0",
        TOKENS["read"].upper(),
        "x" * 5000,
        "\ud800",
        "\udfff" * 40,
    ],
)
def test_what_only_resembles_a_token_opens_nothing(tmp_path: Path, token: str) -> None:
    assert Tokens(files(tmp_path, "read")).opened(token) == frozenset()


@pytest.mark.parametrize("text", ["", "\n", "short\n", "x" * 31, " " * 40, "é" * 40])
def test_a_token_that_can_be_guessed_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"web\.tokens\.read"):
        Tokens({"read": path})


def test_scopes_do_not_share_a_token(tmp_path: Path) -> None:
    path = files(tmp_path, "read")["read"]
    with pytest.raises(ConfigError, match="same token"):
        Tokens({"read": path, "control": path})


def test_on_this_machine_all_but_control_is_open_without_tokens(tmp_path: Path, clock: VirtualClock) -> None:
    access = Access(Tokens({}), closed=False, clock=clock, pairing=Pairing(tmp_path, clock))
    assert access.anybody.scopes == {"read", "infer", "scrape", "ingest"}
    assert LOCAL.scopes == {"read", "infer", "control", "scrape", "ingest"}


def test_a_token_closes_its_scope_for_everybody_else(tmp_path: Path, clock: VirtualClock) -> None:
    access = Access(
        Tokens(files(tmp_path, "infer")), closed=False, clock=clock, pairing=Pairing(tmp_path, clock)
    )
    assert access.anybody.scopes == {"read", "scrape"}


def test_where_labels_are_signed_only_the_token_for_it_stores_them(
    tmp_path: Path, clock: VirtualClock
) -> None:
    tokens = Tokens(files(tmp_path, "ingest"))
    pairing = Pairing(tmp_path, clock)
    alone = Access(Tokens({}), closed=False, clock=clock, pairing=pairing, signed=True)
    assert "ingest" not in alone.anybody.scopes
    signed = Access(Tokens(files(tmp_path, "infer")), closed=True, clock=clock, pairing=pairing, signed=True)
    for access, scope, granted in (
        (signed, "infer", {"infer"}),
        (Access(tokens, closed=True, clock=clock, pairing=pairing, signed=True), "ingest", {"ingest"}),
    ):
        found = access.of_token(TOKENS[scope])
        assert found is not None
        assert found.scopes == granted


def test_from_outside_nothing_is_open(tmp_path: Path, clock: VirtualClock) -> None:
    access = Access(
        Tokens(files(tmp_path, "read")), closed=True, clock=clock, pairing=Pairing(tmp_path, clock)
    )
    assert access.anybody.scopes == frozenset()
    found = access.of_token(TOKENS["read"])
    assert found is not None
    assert found.scopes == {"read"}


def test_a_session_does_what_its_code_opens_until_it_ends(tmp_path: Path, clock: VirtualClock) -> None:
    pairing = Pairing(tmp_path, clock)
    access = Access(Tokens(files(tmp_path, "control")), closed=True, clock=clock, pairing=pairing)
    begun = access.login(pairing.new_code(["read", "control"], "desk"))
    assert begun is not None
    name, granted = begun
    assert granted.scopes == frozenset(("read", "control"))
    assert granted.name == "desk"
    assert access.of_session(name) == granted
    assert access.of_session(name[:-1]) is None
    clock.advance_to(clock.now() + SESSION_SECONDS)
    assert access.of_session(name) is None
    assert access.login("wrong") is None
    assert access.login(TOKENS["control"]) is None


def test_wrong_tokens_are_counted_by_address(clock: VirtualClock) -> None:
    attempts = Attempts(clock)
    assert [attempts.failed("a") for _ in range(FAILURES + 1)] == [True] * FAILURES + [False]
    assert attempts.failed("b")
    clock.advance_to(1000.0 + 60.0 / FAILURES)
    assert attempts.failed("a")


def test_addresses_are_bounded(clock: VirtualClock) -> None:
    attempts = Attempts(clock)
    for _ in range(FAILURES + 1):
        attempts.failed("first")
    for number in range(MOST_ADDRESSES):
        attempts.failed(str(number))
    assert attempts.failed("first")


@pytest.mark.parametrize(("scheme", "name"), [("https", "__Host-edged_session"), ("http", "edged_session")])
def test_with_tls_the_cookie_never_leaves_it(
    tmp_path: Path, clock: VirtualClock, scheme: str, name: str
) -> None:
    pairing = Pairing(tmp_path, clock)
    login = Login(Access(Tokens({}), closed=True, clock=clock, pairing=pairing))
    body = json.dumps({"code": pairing.new_code(["read"])}).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "scheme": scheme, "client": ("192.0.2.1", 1), "edged.headers": {}}
    cookie = asyncio.run(login.begin(Request(scope, receive))).headers["set-cookie"]
    assert cookie.startswith(f"{name}=")
    assert ("Secure" in cookie) == (scheme == "https")
    value = cookie.partition(";")[0].encode()
    sent = {"scheme": scheme, "edged.headers": {b"cookie": value}}
    assert session_of(sent) == value.decode().partition("=")[2]
    assert session_of(sent | {"scheme": "http" if scheme == "https" else "https"}) is None
