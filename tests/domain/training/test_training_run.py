"""Messages between daemon and trainer: there and back as JSON, and refused where they are malformed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from edged.domain.child_orders import OrderFailed
from edged.domain.federated.messages import BaseModelInfo, Quality, RoundAnnouncement, RoundSettings
from edged.domain.federated.round_orders import (
    ROUND_ORDERS,
    FitRequest,
    FleetModelResult,
    KeptUpdate,
    TrainRound,
)
from edged.domain.training.message import decode, encode
from edged.domain.training.trainer_messages import (
    ORDERS,
    REPORTS,
    CheckpointWritten,
    LogLine,
    Pace,
    RunProgress,
    RunRequest,
    TrainingOrder,
)
from edged.domain.training.training_run import (
    Candidate,
    ModelData,
    Received,
    RunCause,
    RunEnd,
    RunOptions,
    RunResult,
)
from edged.errors import TrainingError

if TYPE_CHECKING:
    from edged.domain.training.message import Message

ROUND = RoundAnnouncement(
    "plant",
    1,
    "0" * 32,
    "open",
    "b" * 64,
    BaseModelInfo("c" * 64, 9, 1),
    1.0,
    2e9,
    0.5,
    ("d", "e"),
    RoundSettings(None, 3),
)
RESULT = RunResult(
    run=4, trigger="labels", generation=7, candidate=Path("/s/candidates/4"), samples=40, first_offset=1,
    last_offset=44, consumed=90, remembered=12, memory=(1, 5), bundle="b" * 64, steps=60,
    skipped=0, loss_first=1.5, loss_last=0.5, engine="portable", seconds=0.25,
)  # fmt: skip


st.register_type_strategy(Path, st.text("ab/. ", min_size=1).map(Path))
# Any JSON value.
st.register_type_strategy(
    object,
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    ),
)

# Values of what comes from outside keep rules.
FINITE = st.floats(allow_nan=False, allow_infinity=False)
st.register_type_strategy(Quality, st.builds(Quality, FINITE, FINITE))
st.register_type_strategy(RoundAnnouncement, st.just(ROUND))
st.register_type_strategy(FitRequest, st.just(FitRequest(None, 3, 0.1, 8, 0.5, 2)))


ALL_ORDERS: tuple[type[Message], ...] = (*ORDERS, *ROUND_ORDERS)
RESULTS = {kind.result() for kind in ALL_ORDERS if issubclass(kind, TrainingOrder)}
STORED = (KeptUpdate, RunEnd, RunCause, ModelData)
KINDS = [*ALL_ORDERS, *REPORTS, *sorted(RESULTS, key=lambda kind: kind.__name__), *STORED]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_each_message_comes_back_as_it_was(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(st.builds(kind, **{n: st.from_type(h) for n, h in get_type_hints(kind).items()}))
    if isinstance(message, RunProgress):
        assume(message.steps is not None or message.loss is None)
    line = encode(message)
    assert line.count(b"\n") == 1
    again = decode(json.loads(line), [kind])
    assert encode(again) == line
    assert again == message or b"NaN" in line, "NaN is not equal to itself"
    assert encode(kind.from_json(message.to_json())) == line


def test_a_round_keeps_its_settings_on_the_way() -> None:
    order = TrainRound(3, ROUND, Path("/s/fleet/c.bin"), 60.0)
    again = decode(json.loads(encode(order)), ALL_ORDERS)
    assert again == order
    assert isinstance(again, TrainRound)
    assert RoundAnnouncement.read(again.round.payload()) == ROUND


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (17, "type of the message: expected one of .*, got 17"),
        ({"pause": 1.0}, "type of the message: expected one of Setup, Pace, .*, got None"),
        ({"type": "LogLine", "what": "x"}, "expected one of .*, got 'LogLine'"),
        ({"type": ["Pace"]}, r"expected one of .*, got \['Pace'\]"),
        ({"type": "Pace"}, "Pace.pause: the field is missing"),
        ({"type": "Pace", "pause": "soon"}, "Pace.pause: expected float, got 'soon'"),
        ({"type": "Pace", "pause": True}, "Pace.pause: expected float, got True"),
        ({"type": "RunRequest", "run": 1.5, "trigger": "labels"}, "RunRequest.run: expected int, got 1.5"),
        ({"type": "RunRequest", "run": 1, "trigger": None}, "RunRequest.trigger: expected str, got None"),
        ({"type": "RunRequest", "run": 1, "trigger": "labels", "options": []}, "options: expected an object"),
        (
            {"type": "RunRequest", "run": 1, "trigger": "labels", "options": {"base": "moon"}},
            "RunRequest.options.base: expected one of checkpoint, champion, bundle, got 'moon'",
        ),
        ({"type": "AdoptWeights", "run": 1, "folder": 5}, "AdoptWeights.folder: expected Path, got 5"),
        (
            {"type": "TrainRound", "run": 1, "round": {"fleet": "a"}, "model": "m", "seconds": 1},
            "TrainRound.round.round: the field is missing",
        ),
    ],
)
def test_what_is_no_order_is_refused_in_one_line(values: Any, problem: str) -> None:
    with pytest.raises(TrainingError, match=problem) as caught:
        decode(values, ALL_ORDERS)
    assert "\n" not in caught.value.line()
    assert len(caught.value.line()) < 300


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("memory", [1, "2"], r"RunResult.memory\[1\]: expected int, got '2'"),
        ("memory", "12", "RunResult.memory: expected a list"),
        ("seconds", None, "RunResult.seconds: expected float, got None"),
    ],
)
def test_a_result_with_a_wrong_field_is_refused(name: str, value: Any, problem: str) -> None:
    with pytest.raises(TrainingError, match=problem):
        RunResult.from_json({**RESULT.to_json(), name: value})


def test_fields_with_defaults_may_be_missing_and_unknown_ones_are_passed_over() -> None:
    assert RunRequest.from_json({"run": 1, "trigger": "x", "more": 5}) == RunRequest(1, "x")
    assert Pace.from_json({"pause": 2}) == Pace(2.0)
    assert OrderFailed.from_json({"what": "no"}) == OrderFailed("no")


def test_the_options_of_a_run_are_recorded_as_far_as_they_were_given() -> None:
    asked = RunOptions(steps=5, base="champion", dry_run=True)
    assert asked.to_json() == {"steps": 5, "base": "champion", "dry_run": True}
    assert RunOptions().to_json() == {}
    assert [asked.of_process, RunOptions(new_share=0.1, steps=9).of_process] == [True, False]


def test_the_record_of_a_run_has_the_names_that_are_public() -> None:
    assert list(RESULT.record()) == [
        "trigger", "generation", "candidate", "samples", "first_offset", "last_offset", "consumed",
        "remembered", "bundle", "steps", "skipped", "loss_first", "loss_last", "engine",
        "seconds", "written",
    ]  # fmt: skip
    assert RESULT.record()["candidate"] == "/s/candidates/4"
    tried = FleetModelResult(5, 30, None, None, None, taken=True, reason="better")
    assert tried.record() == {"taken": True, "reason": "better"}
    assert RunEnd(6, outcome="failed", error="no memory").record() == {"error": "no memory"}
    assert RESULT.end().answer() == {
        "run": 4, "engine": "portable", "steps": 60, "samples": 40, "skipped": 0, "seconds": 0.25,
        "loss_first": 1.5, "loss_last": 0.5, "generation": 7, "outcome": "done",
    }  # fmt: skip


def test_a_candidate_knows_the_data_of_its_run() -> None:
    own = RESULT.to_candidate()
    data = {"first_offset": 1, "last_offset": 44, "samples": 40, "bundle": "b" * 64, "consumed": 90}
    assert own.data().to_json() == data
    assert own.received is None


def test_what_came_from_elsewhere_is_told_as_far_as_it_is_known() -> None:
    told = {"transfer": "t", "update": "u"}
    candidate = Candidate(1, Path("/c"), "b", "weights", received=Received("t", "u"))
    assert candidate.received is not None
    assert candidate.received.record() == told
    window = {"first_offset": None, "last_offset": None, "samples": 0}
    assert candidate.data().to_json() == {**window, **told, "bundle": "b"}
    assert ModelData().to_json() == {}


def test_progress_is_shown_as_soon_as_a_run_begins() -> None:
    assert RunProgress(3).to_json() == {"run": 3, "step": 0}
    assert RunProgress(3, 5, 60, None).to_json() == {"run": 3, "step": 5, "steps": 60, "loss": None}
    assert decode(json.loads(encode(CheckpointWritten(2, 5))), REPORTS) == CheckpointWritten(2, 5)
    assert decode(json.loads(encode(LogLine("ä\nb"))), REPORTS) == LogLine("ä\nb")
