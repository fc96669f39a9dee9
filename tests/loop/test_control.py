"""Commands over MQTT: each is answered once, whatever it is."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.errors import ConfigError, RefusedError
from edged.loop.control import MAX_PAYLOAD, MAX_WAITING, Control, parse
from edged.mqtt.delivery import Delivery
from tests.device import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


def delivery(
    name: str, payload: bytes | str = b"", *, retain: bool = False, dup: bool = False, mid: int = 1
) -> Delivery:
    body = payload.encode() if isinstance(payload, str) else payload
    return Delivery(f"edged/d/request/{name}", body, mid, 1, dup, retain, 1, 0.0)


class Panel:
    """A control with a few commands, and the answers it gave."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, dict[str, Any], Delivery]] = []
        self.acknowledged: list[Delivery] = []
        self.done: list[dict[str, Any]] = []
        self.entered, self.gate = threading.Event(), threading.Event()
        self.control = Control(
            {
                "echo": self._echo,
                "refuse": self._refuse,
                "crash": self._crash,
                "odd": self._odd,
                "wait": self._wait,
            },
            answer=lambda name, payload, asked: self.answers.append((name, json.loads(payload), asked)),
            acknowledge=self.acknowledged.extend,
        )

    def _echo(self, request: dict[str, Any]) -> dict[str, Any]:
        self.done.append(request)
        return {"got": request}

    def _refuse(self, _: dict[str, Any]) -> dict[str, Any]:
        raise RefusedError("not now", remedy="later")

    def _crash(self, _: dict[str, Any]) -> dict[str, Any]:
        raise ZeroDivisionError

    def _odd(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"thing": object()}

    def _wait(self, _: dict[str, Any]) -> dict[str, Any]:
        self.entered.set()
        self.gate.wait(20)
        return {}

    def ask(self, name: str, payload: bytes | str = b"", *, retain: bool = False) -> dict[str, Any]:
        """One command to a running control; its answer."""
        asked, before = delivery(name, payload, retain=retain), len(self.answers)
        self.control.receive(asked)
        wait_until(lambda: len(self.acknowledged) > before)
        (answered, answer, to) = self.answers[before]
        assert (answered, to) == (name, asked)
        assert self.acknowledged[before] is asked
        assert len(self.answers) == before + 1
        return answer


@contextmanager
def running() -> Iterator[Panel]:
    panel = Panel()
    panel.control.start()
    yield panel
    panel.gate.set()
    panel.control.stop()


def test_a_command_is_carried_out_and_answered() -> None:
    with running() as panel:
        answer = panel.ask("echo", '{"steps": 5, "transaction": "t1"}')
        assert answer["status"] == "ok"
        assert answer["data"]["got"]["steps"] == 5
        assert answer["transaction"] == "t1"
        assert "transaction" not in panel.ask("echo", "  ")
    assert len(panel.done) == 2


@pytest.mark.parametrize("transaction", ["é", 7, None, {"a": [1]}, ""])
def test_any_transaction_is_echoed_as_it_came(transaction: Any) -> None:
    with running() as panel:
        for name in ("echo", "refuse", "unheard-of", "crash", "odd"):
            answer = panel.ask(name, json.dumps({"transaction": transaction}))
            assert answer["transaction"] == transaction, name


def test_a_retained_command_is_refused() -> None:
    with running() as panel:
        answer = panel.ask("echo", '{"transaction": 1}', retain=True)
    assert (answer["status"], answer["reason"], answer["transaction"]) == ("error", "refused", 1)
    assert "retain" in answer["error"]
    assert not panel.done


def test_an_unknown_command_is_told_the_known_ones() -> None:
    with running() as panel:
        answer = panel.ask("launch")
    assert (answer["status"], answer["reason"]) == ("error", "failed")
    assert "launch" in answer["error"]
    assert "crash, echo, odd, refuse, wait" in answer["error"]


@pytest.mark.parametrize(
    ("payload", "word"),
    [
        (b"{nope", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"7", "not a JSON object"),
        (b'{"a": "' + b"x" * MAX_PAYLOAD + b'"}', "65536 bytes"),
    ],
    ids=["broken", "binary", "deep", "list", "number", "large"],
)
def test_what_is_no_request_is_answered_and_not_carried_out(payload: bytes, word: str) -> None:
    with running() as panel:
        answer = panel.ask("echo", payload)
    assert (answer["status"], answer["reason"]) == ("error", "failed")
    assert word in answer["error"]
    assert not panel.done


def test_a_refusal_is_told_from_a_failure() -> None:
    with running() as panel:
        assert panel.ask("refuse") == {"status": "error", "error": "not now (later)", "reason": "refused"}


def test_a_command_that_crashes_is_answered_and_the_next_one_works() -> None:
    with running() as panel:
        for name in ("crash", "odd"):
            answer = panel.ask(name, '{"transaction": "x"}')
            assert (answer["status"], answer["reason"]) == ("error", "failed")
            assert "internal error" in answer["error"]
        assert panel.ask("echo")["status"] == "ok"


def test_a_hundred_commands_wait_and_the_next_is_refused_at_once() -> None:
    with running() as panel:
        panel.control.receive(delivery("wait"))
        assert panel.entered.wait(10)
        for number in range(MAX_WAITING):
            panel.control.receive(delivery("echo", json.dumps({"n": number})))
        assert not panel.answers
        panel.control.receive(delivery("echo", '{"n": "late", "transaction": 5}'))
        ((name, answer, _),) = panel.answers
        assert (name, answer["status"], answer["reason"], answer["transaction"]) == (
            "echo",
            "error",
            "refused",
            5,
        )
        assert "100 commands are waiting" in answer["error"]
        panel.gate.set()
        wait_until(lambda: len(panel.done) == MAX_WAITING)
    assert [request["n"] for request in panel.done] == list(range(MAX_WAITING))
    assert len(panel.acknowledged) == len(panel.answers) == MAX_WAITING + 2


@given(st.binary(max_size=200))
def test_parsing_gives_a_request_or_a_clear_error(payload: bytes) -> None:
    try:
        told: object = parse(payload)
    except ConfigError as problem:
        told = problem.line()
    assert isinstance(told, dict) or "command" in str(told)


def test_a_command_that_comes_again_after_a_broken_connection_is_not_carried_out_again() -> None:
    with running() as panel:
        panel.ask("echo", '{"n": 1}')
        again = delivery("echo", '{"n": 1}', dup=True)
        panel.control.receive(again)
        assert panel.acknowledged[1] is again, "the broker need not keep it"
        # The flag alone says nothing: another packet, or another content, has not been carried out.
        panel.control.receive(delivery("echo", '{"n": 1}', dup=True, mid=2))
        panel.control.receive(delivery("echo", '{"n": 2}', dup=True))
        wait_until(lambda: len(panel.acknowledged) == 4)
        assert panel.done == [{"n": 1}, {"n": 1}, {"n": 2}]
        assert len(panel.answers) == 3
