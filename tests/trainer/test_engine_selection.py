"""Which engine `auto` takes: timed in a child process, remembered in the state directory."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edged.config import TrainingConfig
from edged.domain.training.trainer_messages import EngineChosen, LogLine, RunRequest
from edged.domain.training.training_run import RunOptions
from edged.engines.runtime.ort import onnxruntime
from edged.storage.files.checksummed_json import read_sealed, seal
from edged.storage.models.bundles import Bundle
from edged.trainer.engine_selection import FILE, EngineChoice, choose
from tests.device.trainers import Ear, Plant
from tests.installed import needs_native

AUTO = TrainingConfig(batch=8)


class Device:
    """A state directory, and what was said while choosing."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.notes: list[str] = []

    def choose(self, bundle: Bundle, config: TrainingConfig = AUTO, **options: Any) -> EngineChoice:
        return choose(config, bundle, self.state, warn=self.notes.append, **options)

    def remember(self, **us: float) -> None:
        """Other times in the place of those that are remembered."""
        kept = read_sealed(self.state / FILE)
        (self.state / FILE).write_bytes(seal({**kept, "us": us}))


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


@pytest.fixture
def timed(device: Device, bundle: Bundle) -> Device:
    """A device on which the engines have been timed for `bundle`."""
    device.choose(bundle)
    device.notes.clear()
    return device


@needs_native
def test_the_faster_one_is_taken_and_said(device: Device, bundle: Bundle) -> None:
    chosen = device.choose(bundle)
    assert chosen.timing is not None
    assert chosen.engine == chosen.timing.fastest
    assert chosen.new
    assert device.notes == []
    assert "µs a step of 8 rows" in chosen.line()


@needs_native
@pytest.mark.parametrize(("native", "portable"), [(1.0, 2.0), (2.0, 1.0)])
def test_what_is_remembered_decides_and_nothing_is_timed_again(
    timed: Device, bundle: Bundle, native: float, portable: float
) -> None:
    timed.remember(native=native, portable=portable)
    chosen = timed.choose(bundle)
    assert chosen.engine == ("native" if native < portable else "portable")
    assert chosen.timing is not None
    assert chosen.timing.us == {"native": native, "portable": portable}
    assert not chosen.new
    assert timed.notes == []


@needs_native
@pytest.mark.parametrize(
    "change", [{"batch": 9}, {"threads": 2}, {"accumulate": 2}], ids=["batch", "threads", "accumulation"]
)
def test_another_step_is_timed_anew(timed: Device, bundle: Bundle, change: dict[str, int]) -> None:
    timed.remember(native=1.0, portable=2.0)
    chosen = timed.choose(bundle, AUTO.model_copy(update=change))
    assert chosen.new
    assert chosen.timing is not None
    assert chosen.timing.us["native"] != 1.0


@needs_native
def test_another_bundle_runtime_or_machine_is_timed_anew(timed: Device, bundle: Bundle) -> None:
    kept = read_sealed(timed.state / FILE)
    assert kept["key"]["onnxruntime"] == onnxruntime.__version__
    assert kept["key"]["bundle"] == bundle.fingerprint
    for key in ("bundle", "onnxruntime", "cpu"):
        (timed.state / FILE).write_bytes(seal({**kept, "key": {**kept["key"], key: "another"}}))
        assert timed.choose(bundle).new, key


@needs_native
def test_a_damaged_answer_is_said_and_timed_anew(timed: Device, bundle: Bundle) -> None:
    content = bytearray((timed.state / FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (timed.state / FILE).write_bytes(content)
    assert timed.choose(bundle).timing is not None
    assert "damaged" in timed.notes[0]
    assert "timed again" in timed.notes[0]
    timed.notes.clear()
    assert not timed.choose(bundle).new, "it was written anew"
    assert timed.notes == []


@needs_native
def test_a_state_directory_that_cannot_be_written_is_said(bundle: Bundle, tmp_path: Path) -> None:
    device = Device(tmp_path / "none")
    assert device.choose(bundle).timing is not None
    assert "timed again next time" in device.notes[0]


@needs_native
def test_looking_only_leaves_nothing_behind(device: Device, bundle: Bundle) -> None:
    assert device.choose(bundle, remember=False).timing is not None
    assert list(device.state.iterdir()) == []


@needs_native
def test_an_engine_that_is_named_or_the_only_one_is_not_timed(device: Device, bundle: Bundle) -> None:
    named = device.choose(bundle, TrainingConfig(engine="portable"))
    assert (named.engine, named.reason, named.timing) == ("portable", "training.engine is portable", None)
    alone = device.choose(replace(bundle, engines=("portable",)))
    assert (alone.engine, alone.reason) == ("portable", "the bundle is for it alone")
    native = device.choose(replace(bundle, engines=("native",)))
    assert (native.engine, "step graph" in native.reason) == ("native", True)
    accelerated = device.choose(bundle, TrainingConfig(provider=["CUDAExecutionProvider"]))
    assert accelerated.line() == "portable (native has no CUDAExecutionProvider)"
    assert device.notes == []
    assert list(device.state.iterdir()) == []


@needs_native
def test_when_timing_fails_the_usual_engine_is_taken_and_nothing_remembered(
    device: Device, bundle: Bundle, tmp_path: Path
) -> None:
    broken = Bundle.open(shutil.copytree(bundle.path, tmp_path / "broken"))
    (broken.path / "step_model.onnx").write_bytes(b"not a graph")
    state = tmp_path / "state"
    state.mkdir()
    chosen = Device(state).choose(broken)
    assert (chosen.engine, chosen.timing) == ("native", None)
    assert "could not be timed" in chosen.reason
    assert list(state.iterdir()) == []


@needs_native
def test_the_trainer_says_what_it_measured_and_keeps_to_it(bundle: Bundle, tmp_path: Path) -> None:
    plant = Plant(tmp_path / "plant", bundle, resident=0, engine="auto")
    engines: list[str] = []
    for run in (1, 2):
        ear, process = Ear(), plant.process()
        engines.append(process.run(RunRequest(run, "command", RunOptions(steps=5)), ear).engine)
        process.close()
        said = [message.choice for message in ear.heard if isinstance(message, EngineChosen)]
        assert [engines[-1] in choice for choice in said] == ([True] if run == 1 else [])
        assert not [message for message in ear.heard if isinstance(message, LogLine)]
    assert engines[0] == engines[1]
    assert (tmp_path / "plant" / FILE).exists()
