"""What an operator tells a coordinator, and configurations that cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.domain.federated.messages import Receipts
from edged.domain.federated.signatures import signer
from edged.errors import ConfigError, RefusedError, StorageError
from edged.fleet.coordinator.control import CONTROL, Control, exclude, instruct, read_control
from edged.fleet.coordinator.journal import read_lineage
from edged.fleet.coordinator.status import lines_of, status_of
from edged.signing import Keys, Sealer, Unsealer, new_pair
from edged.storage.files import atomic
from tests.commands import edged
from tests.fleet.coordinator.channel import TOPICS, Fleet

NAMES = ["a", "b", "c", "d", "e", "f"]
ROUND = {"devices": 4, "quorum": 0.5, "deadline": "100s", "window": 0}
SECTIONS = {"round": ROUND, "choose": {"patience": "1s"}, "gate": {"wait": "50s", "stages": [1.0]}}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    made = Fleet(tmp_path / "fleet", **SECTIONS)
    begin(made)
    return made


def begin(fleet: Fleet) -> None:
    for name in NAMES:
        fleet.state(name)
    fleet.turns()
    fleet.wait(2)


def course(fleet: Fleet) -> tuple[int, str]:
    return fleet.coordinator.course.number, fleet.coordinator.course.phase


def order(fleet: Fleet, what: str) -> None:
    instruct(fleet.config.dir, what, course(fleet))  # type: ignore[arg-type]
    fleet.turns(1)


def test_a_round_without_updates_ends_and_the_next_begins(fleet: Fleet) -> None:
    assert course(fleet) == (1, "open")
    for extensions in (1, 2):
        fleet.wait(101)
        assert (course(fleet), fleet.coordinator.course.extensions) == ((1, "open"), extensions)
    fleet.wait(101)
    assert read_lineage(fleet.config.dir)[0].reason == "too few updates: 0 of 2"
    assert course(fleet) == (2, "open")


def test_more_samples_than_count_are_capped_not_refused(fleet: Fleet) -> None:
    assert fleet.told is not None
    assert fleet.told.devices is not None
    for name in fleet.told.devices:
        fleet.update(name, samples=250_000)
    fleet.turns()
    assert course(fleet) == (1, "trial")
    folder = fleet.config.dir / "models" / fleet.told.base.hash
    assert atomic.verify_directory(folder).extra["samples"] == 5 * 10_000


def test_nothing_opens_while_rounds_are_paused(fleet: Fleet) -> None:
    order(fleet, "pause")
    assert course(fleet) == (1, "open")
    order(fleet, "abandon")
    assert course(fleet) == (1, "done")
    fleet.restart()
    begin(fleet)
    assert course(fleet) == (1, "done")
    assert "paused" in "\n".join(lines_of(status_of(fleet.config.dir)))
    order(fleet, "resume")
    fleet.wait(2)
    assert course(fleet) == (2, "open")


def test_an_order_is_carried_out_once_and_only_on_the_phase_that_it_was_given_for(fleet: Fleet) -> None:
    order(fleet, "abandon")
    assert read_lineage(fleet.config.dir)[0].reason == "abandoned by the operator"
    fleet.wait(2)
    assert course(fleet) == (2, "open")
    fleet.restart()
    fleet.turns()
    assert course(fleet) == (2, "open")
    instruct(fleet.config.dir, "abandon", (1, "trial"))
    fleet.turns()
    assert course(fleet) == (2, "open")
    assert fleet.coordinator.course.order == read_control(fleet.config.dir).order.token  # type: ignore[union-attr]


def test_an_excluded_device_is_neither_asked_nor_heard(fleet: Fleet) -> None:
    for name in "ab":
        exclude(fleet.config.dir, name)
    for name in "abc":  # too few to close the round, whoever was drawn
        fleet.update(name)
    fleet.turns()
    admission = fleet.coordinator.admission
    assert admission.refused["excluded"] == 2
    assert not {"a", "b"} & set(admission.contributors)
    fleet.coordinator._publish_status(again=True)  # noqa: SLF001  else every two seconds of the real clock
    told = status_of(fleet.config.dir)
    assert told.status.why_not["a"] == "excluded"
    assert "  not ready: a, b: excluded" in lines_of(told)
    order(fleet, "abandon")
    fleet.wait(2)
    assert fleet.told is not None
    assert fleet.told.devices == ("c", "d", "e", "f")
    assert exclude(fleet.config.dir, "a", include=True).excluded == ("b",)
    with pytest.raises(RefusedError, match="f is not excluded"):
        exclude(fleet.config.dir, "f", include=True)


def test_a_device_that_has_stopped_is_not_waited_for(fleet: Fleet) -> None:
    assert fleet.told is not None
    assert fleet.told.devices is not None
    silent = fleet.told.devices[0]
    for name in fleet.told.devices:
        fleet.update(name)
    fleet.turns()
    assert course(fleet) == (1, "trial")
    for name in NAMES:
        if name != silent:
            fleet.report(name, 0.9)
    fleet.turns()
    assert course(fleet) == (1, "trial")
    fleet.state(silent, ready=False, why_not="the daemon has stopped")
    fleet.turns()
    assert (course(fleet)[1], read_lineage(fleet.config.dir)[0].accepted) == ("done", True)


def test_status_says_why_devices_take_no_part(fleet: Fleet) -> None:
    for name in "abc":
        fleet.state(name, ready=False, why_not="flash budget used")
    fleet.state("d", bundle="other")
    fleet.turns()
    fleet.coordinator._publish_status(again=True)  # noqa: SLF001  else every two seconds of the real clock
    lines = lines_of(status_of(fleet.config.dir))
    assert "  not ready: a, b, c: flash budget used" in lines
    assert "  not ready: d: has bundle other, the fleet f00" in lines


def test_status_says_how_long_it_waits_for_more_devices(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, choose={"patience": "60s"}, round={"devices": 4, "window": 0})
    for name in "abc":
        fleet.state(name)
    fleet.turns()
    fleet.wait(20)
    fleet.coordinator._publish_status(again=True)  # noqa: SLF001
    assert "  waits for more devices that are ready, for another 40 s" in lines_of(
        status_of(fleet.config.dir)
    )


def test_a_report_that_comes_late_is_no_refusal(fleet: Fleet) -> None:
    assert fleet.told is not None
    assert fleet.told.devices is not None
    for name in fleet.told.devices:
        fleet.update(name)
    fleet.turns()
    for name in NAMES:
        fleet.report(name, 0.9)
    fleet.turns()
    assert course(fleet) == (1, "done")
    fleet.report("a", 0.9)
    fleet.turns()
    assert not {"late", "round"} & set(fleet.coordinator.admission.refused)


def test_a_damaged_control_file_changes_nothing(fleet: Fleet) -> None:
    exclude(fleet.config.dir, "a")
    fleet.turns()
    (fleet.config.dir / CONTROL).write_bytes(b"{")
    fleet.turns()
    fleet.coordinator._publish_status(again=True)  # noqa: SLF001  else every two seconds of the real clock
    assert status_of(fleet.config.dir).status.excluded == ("a",)
    assert instruct(fleet.config.dir, "pause", (1, "open")) == Control(paused=True)


def test_what_cannot_be_ordered_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no round is under way"):
        instruct(tmp_path, "abandon", (3, "done"))
    with pytest.raises(StorageError, match="no coordinator has run here"):
        instruct(tmp_path / "none", "pause", (1, "open"))


def test_rounds_and_receipts_are_signed_with_the_coordinators_key(tmp_path: Path) -> None:
    keys = Keys([new_pair(tmp_path / "fleet.key")])
    signing = Fleet(tmp_path / "fleet", key=str(tmp_path / "fleet.key"), **SECTIONS)
    begin(signing)
    assert signer(TOPICS.round, signing.line.retained[TOPICS.round], keys) is not None
    assert signing.told is not None
    assert signing.told.devices is not None
    name = signing.told.devices[0]
    assert signing.told.seal == Unsealer(tmp_path / "fleet.key").public
    signing.update(name)
    signing.turns()
    (payload,) = (told for topic, told in signing.line.sent if topic == TOPICS.ack(1))
    assert signer(TOPICS.ack(1), payload, keys) is not None
    assert Receipts.read(payload).accepted == (name,)


def test_what_is_sealed_to_the_coordinator_counts_and_what_does_not_open_is_refused(tmp_path: Path) -> None:
    new_pair(tmp_path / "fleet.key")
    signing = Fleet(tmp_path / "fleet", key=str(tmp_path / "fleet.key"), **SECTIONS)
    begin(signing)
    assert signing.told is not None
    assert signing.told.devices is not None
    assert signing.told.seal is not None
    first, second = signing.told.devices[:2]
    for name, topic in ((first, None), (second, "edged/fl/plant/up/9/x")):
        for real, payload in signing.update_of(name):
            about = (topic or real).encode()
            signing.line.say(real, Sealer(signing.told.seal).seal(bytes(payload), about))
    signing.turns()
    assert signing.coordinator.admission.contributors == [first]
    assert signing.coordinator.admission.refused == {"sealed": 1}


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"bundle": ""}, "is no bundle: the bundle that devices need is unknown"),
        ({"round": {"deadline": "30s"}}, "devices send within 60 s, but the round closes after 30 s"),
    ],
)
def test_a_configuration_that_cannot_work_is_an_error_at_once(
    tmp_path: Path, sections: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Fleet(tmp_path, **sections)


@pytest.mark.slow
def test_the_command_line_steers(fleet: Fleet) -> None:
    def run(*words: str) -> str:
        done = edged("fleet", *words)
        return done.out + done.err

    path = str(fleet.path)
    assert run("round", "pause", path) == "no further round is opened\n"
    assert run("exclude", path, "a") == "excluded: a\n"
    assert run("include", path, "a") == "excluded: none\n"
    assert "a is not excluded" in run("include", path, "a")
    assert "abandon: round 1, open" in run("round", "abandon", path)
    fleet.turns()
    assert course(fleet) == (1, "done")
    assert "no round is under way" in run("round", "abandon", path)
