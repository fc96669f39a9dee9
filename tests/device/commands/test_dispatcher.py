"""Commands over MQTT: each is answered once, whatever it is."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.clock import VirtualClock
from edged.config import CommandsConfig
from edged.device.commands.answers import CommandAnswers, encoded
from edged.device.commands.dispatcher import KEPT, CommandDispatcher, command_authority
from edged.device.commands.inbox import MAX_WAITING, CommandInbox
from edged.domain.commands.rules import MAX_PAYLOAD, digest, parse
from edged.domain.commands.tasks import Handler, RunningCommands, TaskProgress
from edged.errors import ConfigError, EdgedError, RefusedError
from edged.mqtt.client.message import MessageProperties, ReceivedMessage
from edged.signing import new_pair, sign_command
from edged.storage.journal.journal import CommandRecord, CommandRetention
from edged.storage.models.registry import Registry
from tests.running_device import wait_until

if TYPE_CHECKING:
    from edged.domain.commands.rules import Answer
    from edged.domain.commands.tasks import CommandProgress, Sender, Task

NOW = 1_800_000_000.0


def delivery(
    name: str, payload: bytes | str = b"", *, retain: bool = False, dup: bool = False, mid: int = 1
) -> ReceivedMessage:
    body = payload.encode() if isinstance(payload, str) else payload
    return ReceivedMessage(f"edged/d/request/{name}", body, mid, 1, dup, retain, 1, 0.0)


class RecordedAnswers(CommandAnswers):
    """Answers, progress and acknowledgements, as a broker would get them."""

    def __init__(self, running: RunningCommands, journal: Registry, clock: VirtualClock) -> None:
        wire: Any = None  # what it publishes is recorded instead
        super().__init__(wire, wire, running, journal=journal, clock=clock)
        self.published: list[tuple[str, dict[str, Any], Sender]] = []
        self.acknowledged: list[ReceivedMessage] = []
        self.reported: list[tuple[object, dict[str, Any]]] = []

    def publish(self, name: str, answer: Answer, sender: Sender) -> None:
        self.published.append((name, json.loads(encoded(answer)), sender))

    def publish_progress(self, progress: CommandProgress) -> None:
        self.reported.append((progress.transaction, json.loads(encoded(progress.to_json()))))

    def acknowledge(self, delivery: ReceivedMessage) -> None:
        self.acknowledged.append(delivery)


class Panel:
    """A control with a few commands, and the answers it gave."""

    def __init__(self, state: Path, **settings: Any) -> None:
        self.running = RunningCommands()
        self.done: list[Mapping[str, Any]] = []
        self.tasks: list[Task] = []
        self.entered, self.gate = threading.Event(), threading.Event()
        self.clock = VirtualClock(NOW)
        self.registry = Registry.open(state)
        recorded = RecordedAnswers(self.running, self.registry, self.clock)
        self.answers, self.acknowledged = recorded.published, recorded.acknowledged
        self.progress = recorded.reported
        limits = {"rate": settings.pop("rate", 10_000), "burst": settings.pop("burst", 10_000)}
        kept = settings.pop("kept", KEPT)
        config = CommandsConfig.model_validate(settings)
        authority = command_authority("d", config, self.registry, self.clock)
        self.inbox = CommandInbox(self.clock, recorded, self.running, authority, **limits)
        self.control = CommandDispatcher(
            {
                "echo": Handler(self._echo),
                "refuse": Handler(self._refuse),
                "crash": Handler(self._crash),
                "odd": Handler(self._odd),
                "wait": Handler(self._wait),
                "ping": Handler(self._echo),
                "label": Handler(self._echo),
                "wipe": Handler(self._echo),
                "errand": Handler(self._errand, "aside"),
                "run": Handler(self._run, "later", resume=self._resume),
            },
            config=config,
            clock=self.clock,
            journal=self.registry,
            answers=recorded,
            authority=authority,
            running=self.running,
            kept=kept,
        )

    def _errand(self, request: dict[str, Any], task: Task) -> dict[str, Any]:
        task.progress(TaskProgress(rows=1, of=2))
        self.done.append(request)
        if "problem" in request:
            raise ConfigError("it could not be done")
        return {"did": request}

    def _run(self, _: dict[str, Any], task: Task) -> dict[str, Any]:
        self.tasks.append(task)
        return {"new": 5}

    def _resume(self, request: Mapping[str, Any], task: Task) -> None:
        self.done.append(request)
        self.tasks.append(task)

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
        acknowledged = len(self.acknowledged)
        self.inbox.receive(asked)
        wait_until(lambda: len(self.acknowledged) > acknowledged)
        (answered, answer, to) = self.answers[before]
        assert (answered, to) == (name, asked)
        assert self.acknowledged[acknowledged] is asked
        assert len(self.answers) == before + 1
        return answer


@contextmanager
def running(state: Path | None = None, **settings: Any) -> Iterator[Panel]:
    with ExitStack() as stack:
        panel = Panel(state or Path(stack.enter_context(TemporaryDirectory())), **settings)
        panel.control.resume()
        panel.inbox.start(panel.control)
        yield panel
        panel.gate.set()
        panel.inbox.stop()
        panel.control.stop()
        panel.registry.close()


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


def test_a_retained_command_that_is_taken_back_is_none() -> None:
    with running() as panel:
        cleared = delivery("echo", "", retain=True)
        panel.inbox.receive(cleared)
        assert panel.acknowledged == [cleared]
        panel.ask("echo", '{"n": 1}')
        assert (len(panel.answers), panel.running.counts["cleared"]) == (1, 1)


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
    assert "crash, echo, errand, label, odd, ping, refuse, run, wait, wipe" in answer["error"]


@pytest.mark.parametrize(
    ("payload", "word"),
    [
        (b"{nope", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"7", "not a JSON object"),
        (b'{"a": "' + b"x" * MAX_PAYLOAD + b'"}', "65536 bytes"),
        (b'{"transaction": NaN}', "not JSON"),
        (b'{"transaction": 1e999}', "not JSON"),
        (b'{"transaction": "' + b"x" * 300 + b'"}', "transaction: it has 302 characters"),
    ],
    ids=["broken", "binary", "deep", "list", "number", "large", "nan", "infinite", "long"],
)
def test_what_is_no_request_is_answered_and_not_carried_out(payload: bytes, word: str) -> None:
    with running() as panel:
        answer = panel.ask("echo", payload)
    assert (answer["status"], answer["reason"]) == ("error", "failed")
    assert word in answer["error"]
    assert not panel.done


def test_a_refusal_is_told_from_a_failure() -> None:
    with running() as panel:
        assert panel.ask("refuse") == {
            "status": "error",
            "state": "refused",
            "error": "not now (later)",
            "reason": "refused",
        }


def test_a_command_that_crashes_is_answered_and_the_next_one_works() -> None:
    with running() as panel:
        for name in ("crash", "odd"):
            answer = panel.ask(name, '{"transaction": "x"}')
            assert (answer["status"], answer["reason"]) == ("error", "failed")
            assert "internal error" in answer["error"]
        assert panel.ask("echo")["status"] == "ok"


def test_a_hundred_commands_wait_and_the_next_is_refused_at_once() -> None:
    with running() as panel:
        panel.inbox.receive(delivery("wait"))
        assert panel.entered.wait(10)
        for number in range(MAX_WAITING):
            panel.inbox.receive(delivery("echo", json.dumps({"n": number})))
        assert not panel.answers
        panel.inbox.receive(delivery("echo", '{"n": "late", "transaction": 5}'))
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
        panel.inbox.receive(again)
        assert panel.acknowledged[1] is again, "the broker need not keep it"
        # The flag alone says nothing: another packet, or another content, has not been carried out.
        panel.inbox.receive(delivery("echo", '{"n": 1}', dup=True, mid=2))
        panel.inbox.receive(delivery("echo", '{"n": 2}', dup=True))
        wait_until(lambda: len(panel.acknowledged) == 4)
        assert panel.done == [{"n": 1}, {"n": 1}, {"n": 2}]
        assert len(panel.answers) == 3


# ---- one effect ----------------------------------------------------------------------------


def test_a_command_under_the_same_transaction_has_one_effect_and_one_answer(tmp_path: Path) -> None:
    with running(tmp_path) as panel:
        first = panel.ask("echo", '{"n": 1, "transaction": "t"}')
        assert panel.ask("echo", '{"transaction":"t","n":1}') == first
        refused = panel.ask("refuse", '{"transaction": "t"}')
        assert panel.ask("refuse", '{"transaction": "t"}') == refused
        assert panel.running.counts["repeated"] == 2
    with running(tmp_path) as panel:
        assert panel.ask("echo", '{"n": 1, "transaction": "t", "expires": 1}') == first
        assert panel.done == []
        other = panel.ask("echo", '{"n": 2, "transaction": "t"}')
        assert (other["reason"], other["state"]) == ("refused", "refused")
        assert "another request" in other["error"]


def test_correlation_data_names_a_command_that_has_no_transaction(tmp_path: Path) -> None:
    asked = delivery("echo", "{}")
    asked.properties = MessageProperties("to/me", b"\x00\x01")
    with running(tmp_path) as panel:
        panel.inbox.receive(asked)
        wait_until(lambda: panel.answers)
    with running(tmp_path) as panel:
        panel.inbox.receive(asked)
        wait_until(lambda: panel.answers)
        assert panel.done == []
        assert panel.answers[0][1]["status"] == "ok"


def test_what_only_reads_is_answered_anew(tmp_path: Path) -> None:
    with running(tmp_path) as panel:
        for _ in range(2):
            panel.ask("ping", '{"transaction": "t"}')
        assert len(panel.done) == 2
        assert panel.registry.commands() == []


@pytest.mark.parametrize(("days", "times"), [(31, 2), (10, 1)])
def test_a_command_is_done_once_for_as_long_as_it_is_remembered(days: int, times: int) -> None:
    with running(max_age=None) as panel:
        for other in ("u", "v"):
            panel.ask("echo", '{"transaction": "t", "n": 1}')
            panel.clock.step(days * 86400)
            panel.ask("echo", json.dumps({"transaction": other}))
        assert panel.done.count({"n": 1}) == times


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"expires": NOW - 1}, "expired 1 s ago"),
        ({"ts": NOW - 90_000}, "86400 at most"),
        ({"ts": NOW + 3600}, "from the future"),
        ({"ts": "soon"}, "no time in Unix seconds"),
        ({"expires": True}, "no time in Unix seconds"),
        ({"ts": NOW - 500}, "older than what the device remembers"),
    ],
)
def test_what_comes_too_late_is_not_carried_out(fields: dict[str, Any], word: str) -> None:
    with running(kept=10) as panel:
        panel.clock.step(-400)
        for number in range(12):
            panel.ask("echo", json.dumps({"transaction": number}))
        panel.clock.step(400)
        panel.done.clear()
        answer = panel.ask("echo", json.dumps(fields | {"transaction": "late"}))
        assert answer["status"] == "error"
        assert word in answer["error"]
        assert panel.done == []
        assert panel.ask("echo", json.dumps({"ts": NOW - 100, "expires": NOW + 5}))["status"] == "ok"


def test_the_ts_of_a_label_is_that_of_its_sample() -> None:
    with running() as panel:
        assert panel.ask("label", json.dumps({"key": "a", "ts": 5.0, "label": 1}))["status"] == "ok"
        assert panel.done == [{"key": "a", "ts": 5.0, "label": 1}]
        assert panel.ask("label", json.dumps({"ts": 5.0, "labels": []}))["status"] == "error"


def test_without_a_clock_ages_are_not_judged_and_expiries_refused() -> None:
    with running() as panel:
        panel.clock.step(-NOW)
        assert panel.ask("echo", '{"ts": 1799999999}')["status"] == "ok"
        answer = panel.ask("echo", '{"expires": 1900000000}')
        assert (answer["state"], "clock is not set" in answer["error"]) == ("refused", True)


def test_what_exceeds_the_rate_is_refused_and_counted() -> None:
    with running(rate=1, burst=3) as panel:
        for number in range(40):
            panel.inbox.receive(delivery("echo", json.dumps({"transaction": number}), mid=number + 1))
        wait_until(lambda: len(panel.acknowledged) == 40)
        refused = [answer for _, answer, _ in panel.answers if answer["status"] == "error"]
        assert len(panel.done) == 3
        assert len(refused) == 10, "ten answers at once, the others are counted"
        assert "more than 1 commands a second" in refused[0]["error"]
        assert (panel.running.counts["limited"], panel.running.counts["unanswered"]) == (37, 27)


def test_signed_commands_have_a_queue_and_a_rate_of_their_own(tmp_path: Path) -> None:
    new_pair(tmp_path / "a")
    with running(tmp_path, keys=[tmp_path / "a.pub"], rate=1, burst=3) as panel:
        for number in range(5):
            panel.inbox.receive(delivery("ping", mid=number + 1))
        for number in range(5):
            payload = sign_command(
                "echo", "d", {"n": number}, tmp_path / "a", now=NOW, transaction=str(number)
            )
            panel.inbox.receive(delivery("echo", payload, mid=number + 6))
        wait_until(lambda: len(panel.acknowledged) == 10)
        assert sorted(request["n"] for request in panel.done if request) == [0, 1, 2]
        assert panel.running.counts["limited"] == 4


@pytest.mark.parametrize("payload", ['{"ts": %s}', '{"expires": %s}', '{"signature": "AAAA", "ts": %s}'])
def test_a_number_beyond_all_bounds_is_no_request(payload: str, tmp_path: Path) -> None:
    new_pair(tmp_path / "a")
    with running(tmp_path, keys=[tmp_path / "a.pub"]) as panel:
        answer = panel.ask("ping", payload % ("1" * 400))
    assert (answer["reason"], "not JSON" in answer["error"]) == ("failed", True)


def test_what_is_not_allowed_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    new_pair(tmp_path / "key")
    fields = {"confirm": "d"}
    with running(tmp_path, keys=[tmp_path / "key.pub"]) as panel:
        answer = panel.ask("wipe", '{"confirm": "d", "transaction": 3}')
        assert (answer["state"], answer["transaction"]) == ("refused", 3)
        assert answer["error"].startswith("wipe: this command must be signed (")
        signed = sign_command("wipe", "d", fields, tmp_path / "key", now=NOW, transaction="t")
        assert panel.ask("wipe", signed.replace(b'"d"', b'"e"'))["state"] == "refused"
        assert (panel.registry.commands(), panel.done) == ([], [])
        assert panel.ask("wipe", signed)["state"] == "successful"
        assert panel.done == [fields]


# ---- commands that take long -----------------------------------------------------------------


def states(panel: Panel) -> list[str]:
    return [answer["state"] for _, answer, _ in panel.answers]


@pytest.mark.parametrize("fields", [{"a": 1}, {"problem": 1}])
def test_an_errand_is_answered_twice_and_repeated_with_its_outcome(fields: dict[str, Any]) -> None:
    outcome = "failed" if "problem" in fields else "successful"
    asked = json.dumps(fields | {"transaction": "e"})
    with running() as panel:
        panel.inbox.receive(delivery("errand", asked))
        wait_until(lambda: len(panel.answers) == 2)
        assert states(panel) == ["accepted", outcome]
        told = {"transaction": "e", "command": "errand", "state": "executing", "ts": NOW}
        assert panel.progress == [("e", told), ("e", {**told, "rows": 1, "of": 2})]
        assert panel.ask("errand", asked) == panel.answers[1][1]
        assert panel.done == [fields]


def test_a_nameless_run_is_answered_once_and_an_errand_twice() -> None:
    with running() as panel:
        assert panel.ask("run")["data"] == {"state": "accepted", "new": 5}
        panel.tasks[0].done({"run": 1})
        panel.inbox.receive(delivery("errand", "{}"))
        wait_until(lambda: len(panel.answers) == 3)
        assert states(panel) == ["accepted", "accepted", "successful"]
        assert panel.running.tasks == []


def test_a_run_is_gone_on_with_after_a_restart_and_answered_then(tmp_path: Path) -> None:
    asked = delivery("run", '{"steps": 5, "transaction": "r"}')
    asked.properties = MessageProperties("to/me", b"c")
    with running(tmp_path) as panel:
        panel.inbox.receive(asked)
        wait_until(lambda: panel.answers)
        panel.tasks[0].mark_executing()
        first = panel.answers[0][1]
    with running(tmp_path) as panel:
        assert panel.done == [{"steps": 5}]
        assert panel.ask("run", asked.payload) == first
        panel.tasks[0].done({"run": 9})
        panel.tasks[0].fail(EdgedError("too late to matter"))
        (_, answer, to) = panel.answers[-1]
        assert (answer["state"], answer["data"], answer["transaction"]) == ("successful", {"run": 9}, "r")
        assert (to.response_topic, to.correlation) == ("to/me", b"c")
        assert len(panel.answers) == 2


def test_what_cannot_be_gone_on_with_has_failed(tmp_path: Path) -> None:
    with running(tmp_path) as panel:
        record = CommandRecord('wait:"w"', "wait", NOW, digest("wait", {}), "accepted", {"transaction": "w"})
        panel.registry.record_command(record, CommandRetention(10, 0.0))
    with running(tmp_path) as panel:
        ((name, told, _),) = panel.answers
        assert (name, told["state"], told["transaction"]) == ("wait", "failed", "w")
        assert "the daemon ended while it was carried out" in told["error"]
        assert panel.ask("wait", '{"transaction": "w"}') == told
        assert not panel.entered.is_set()
