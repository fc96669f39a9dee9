"""From a candidate to a champion, and every way it can be refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edged.engines.inference import InferenceModel, InferenceReader
from edged.errors import ConfigError, ModelError, RefusedError
from tests.device.gates import Gate
from tests.device.learning_rig import batch
from tests.device.linear import BAD, BROKEN, GOOD, candidate, inputs, write


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """The champion is always wrong."""
    with closing(Gate(tmp_path, BAD)) as made:
        yield made


def test_models_above_the_number_kept_go_once_the_verdict_took_effect(gate: Gate) -> None:
    for run in range(1, 11):
        gate.consider(BAD, run=run)
    newest = candidate(gate.candidates, 11, GOOD)
    _, model = gate.judge(newest)
    assert model is not None
    before = [record.version for record in gate.registry.records()]
    assert len(before) == 12, "nothing is removed while a model waits to be served"
    gate.models.set_champion(model.version, "better")
    gate.models.record_judged(newest)
    left = [record.version for record in gate.registry.records()]
    assert len(left) == 10
    assert {gate.champion.version, model.version} <= set(left)
    gate.models.record_judged(replace(newest, source="weights"))
    assert [record.version for record in gate.registry.records()] == left


# ---- the verdict -----------------------------------------------------------------------------


def test_a_better_candidate_is_accepted_and_stored_with_its_verdict(gate: Gate) -> None:
    verdict, model = gate.consider(GOOD)
    assert verdict.accepted
    assert model is not None
    assert verdict.numbers["gain"] == 1.0
    assert verdict.numbers["candidate_error"] == 0.0
    assert verdict.numbers["latency_s"] > 0
    record = gate.registry.get(model.version)
    assert record.verdict == verdict
    assert (record.parent, record.run, record.source) == (gate.champion.version, 1, "training")
    assert record.status == "candidate", "it is champion only when it is crowned"
    assert gate.registry.champion() == gate.champion.version
    gate.models.set_champion(model.version, "better")
    assert gate.registry.champion() == model.version
    assert gate.models.promotions == 1
    np.testing.assert_array_equal(
        model.model.predict(inputs(4)), InferenceModel(gate.registry.verify(model.version)).predict(inputs(4))
    )


def test_a_worse_candidate_is_refused_and_kept_with_the_numbers(tmp_path: Path) -> None:
    with closing(Gate(tmp_path, GOOD)) as gate:
        verdict, model = gate.consider(BAD)
        assert (verdict.accepted, model) == (False, None)
        assert "right in 0 of " in verdict.reasons[0]
        record = gate.registry.records()[-1]
        assert (record.status, record.verdict) == ("rejected", verdict)
        assert gate.registry.champion() == gate.champion.version
        assert gate.models.rejections == 1


def test_an_equal_candidate_passes_unless_a_gain_is_asked_for(tmp_path: Path, gate: Gate) -> None:
    assert gate.consider(BAD)[0].accepted
    (tmp_path / "strict").mkdir()
    with closing(Gate(tmp_path / "strict", BAD, min_gain=0.01)) as strict:
        assert not strict.consider(BAD)[0].accepted


@pytest.mark.parametrize("samples", [0, 10])
def test_without_enough_holdout_nothing_is_promoted(tmp_path: Path, samples: int) -> None:
    with closing(Gate(tmp_path, BAD, samples=samples)) as gate:
        verdict, model = gate.consider(GOOD)
        assert model is None
        assert "5 needed" in verdict.reasons[0]


def test_the_first_model_of_a_stream_needs_no_comparison(tmp_path: Path) -> None:
    with closing(Gate(tmp_path, GOOD, samples=0)) as gate:
        result = candidate(gate.candidates, 1, BAD)
        assert gate.judge(result, first=True)[1] is not None
        with pytest.raises(AssertionError):
            gate.refused(candidate(gate.candidates, 2, GOOD))
        verdict, model = gate.judge(candidate(gate.candidates, 3, BROKEN), first=True)
        assert model is None, "but it is verified"
        assert "not finite" in verdict.reasons[0]


def test_a_pinned_version_stays(gate: Gate) -> None:
    gate.registry.pin(gate.champion.version)
    verdict, model = gate.consider(GOOD)
    assert model is None
    assert verdict.reasons == (f"model {gate.champion.version} is pinned: unpin it to let new models serve",)
    gate.registry.unpin_all()
    assert gate.consider(GOOD, run=2)[0].accepted


def test_one_logit_for_two_classes_is_wide_enough(tmp_path: Path) -> None:
    with closing(Gate(tmp_path, BAD)) as gate:
        base = write(tmp_path / "one.onnx", BAD, outputs=1)
        gate.champion = type(gate.champion)(gate.champion.version, InferenceModel(base))
        verdict, model = gate.consider(GOOD, outputs=1)
        assert verdict.reasons[0].endswith("the current model in 0")
        assert model is not None


@pytest.mark.parametrize(("shift", "refused"), [(9.0, True), (0.0, False)])
def test_earlier_data_is_defended_unless_its_answers_have_changed(
    tmp_path: Path, shift: float, refused: bool
) -> None:
    """Now nothing can be known; then the champion knew all."""
    with closing(Gate(tmp_path, GOOD, significance=0.001)) as gate:
        x = inputs(600, 1)
        x[:, 1] += np.float32(shift)
        coins = np.random.default_rng(2).integers(0, 2, len(x)).astype(float).tolist()
        gate.log.commit(batch(gate.log, x, coins))
        verdict, model = gate.consider(BAD)
        assert (model is None) == verdict.forgets == refused
        if refused:
            assert verdict.reasons[1].startswith("forgets earlier data: right in")
            assert verdict.to_json()["forgets"]


# ---- verification ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.onnx", "probe_input.npy", "probe_output.npy", "manifest.json"])
@pytest.mark.parametrize("how", ["flip", "cut", "gone"])
def test_a_damaged_candidate_is_refused(gate: Gate, name: str, how: str) -> None:
    result = candidate(gate.candidates, 1, GOOD)
    file = result.folder / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(content if how == "flip" else content[:-20])
    assert "verification failed" in gate.refused(result)
    assert not list(gate.candidates.iterdir()), "and does not stay on the disk"


def test_a_candidate_that_is_gone_is_refused(gate: Gate) -> None:
    result = candidate(gate.candidates, 1, GOOD)
    assert "missing" in gate.refused(replace(result, folder=gate.candidates / "77"))


def test_a_model_that_is_no_model_is_refused(gate: Gate, tmp_path: Path) -> None:
    result = candidate(gate.candidates, 1, GOOD)
    folder = result.folder
    (folder / "model.onnx").write_bytes(b"no model at all")
    (folder / "manifest.json").unlink()
    folder.rename(gate.candidates / ".staging-2")
    from edged.storage.files.atomic import publish_directory

    publish_directory(gate.candidates / ".staging-2", folder)
    assert "cannot be loaded" in gate.refused(result)


def test_other_outputs_than_the_trainers_are_refused(gate: Gate) -> None:
    x = inputs(16, 99)
    wrong = InferenceModel(write(gate.folder / "other.onnx", GOOD + 0.01)).predict(x)
    assert "differ from the trainer's" in gate.refused(candidate(gate.candidates, 1, GOOD, expected=wrong))


def test_outputs_within_the_tolerance_pass(gate: Gate) -> None:
    x = inputs(16, 99)
    near = InferenceModel(write(gate.folder / "other.onnx", GOOD + 1e-5)).predict(x)
    assert gate.consider(GOOD, expected=near)[0].accepted


@pytest.mark.parametrize(("tolerance", "accepted"), [(0.001, False), (0.1, True)])
def test_the_tolerance_is_the_configured_one(tmp_path: Path, tolerance: float, accepted: bool) -> None:
    with closing(Gate(tmp_path, BAD, tolerance=tolerance)) as gate:
        near = InferenceModel(write(gate.folder / "other.onnx", GOOD + 0.01)).predict(inputs(16, 99))
        assert gate.consider(GOOD, expected=near)[0].accepted is accepted


def test_expected_outputs_that_are_not_finite_are_refused(gate: Gate) -> None:
    expected = np.full((16, 2), np.nan, np.float32)
    assert "differ" in gate.refused(candidate(gate.candidates, 1, GOOD, expected=expected))


def test_a_model_with_other_outputs_is_refused(gate: Gate) -> None:
    assert "output shape (16, 3)" in gate.refused(candidate(gate.candidates, 1, GOOD, outputs=3))


def test_a_model_with_other_inputs_is_refused(gate: Gate) -> None:
    probe = np.zeros((16, 4), np.float32)
    reason = gate.refused(candidate(gate.candidates, 1, GOOD, inputs=4, probe=probe))
    assert "verification failed" in reason


def test_a_model_with_outputs_that_are_not_finite_is_refused(gate: Gate) -> None:
    assert "not finite" in gate.refused(candidate(gate.candidates, 1, BROKEN))


def test_a_slow_model_is_refused(tmp_path: Path) -> None:
    with closing(Gate(tmp_path, BAD, latency=1e-7)) as gate:
        assert "one prediction takes" in gate.refused(candidate(gate.candidates, 1, GOOD))


# ---- start and way back ----------------------------------------------------------------------


def test_the_first_start_serves_the_bundles_own_model(gate: Gate) -> None:
    record = gate.registry.get(gate.champion.version)
    assert (record.version, record.source, record.status) == (1, "bundle", "champion")


def test_a_restart_serves_the_champion(gate: Gate) -> None:
    version = gate.crowned(GOOD, 1).version
    back = gate.reboot()
    assert back.version == version == 2
    assert back.model.predict(inputs(8))[:, 1].tolist() == inputs(8)[:, 0].tolist()
    assert len(gate.registry.records()) == 2


def test_a_provider_that_is_missing_dethrones_nobody(gate: Gate) -> None:
    verdict, model = gate.consider(GOOD)
    assert model is not None, verdict
    gate.models.set_champion(model.version, "better")
    gate.open_parts(reader=InferenceReader(providers=["CUDAExecutionProvider"]))
    with pytest.raises(ConfigError, match="no CUDAExecutionProvider"):
        gate.models.boot(gate.base)
    assert gate.registry.champion() == model.version
    assert len(gate.registry.records()) == 2, "nor is another first model installed"


def test_what_was_left_before_the_gate_is_removed_at_the_start(gate: Gate) -> None:
    candidate(gate.candidates, 1, GOOD)
    (gate.candidates / ".staging-2").mkdir()
    gate.reboot()
    assert not list(gate.candidates.iterdir())


def test_a_champion_damaged_on_the_disk_gives_way_to_the_one_before(gate: Gate) -> None:
    gate.crowned(BAD, 1)
    before = gate.crowned(GOOD, 2)
    gate.damage(gate.crowned(BAD, 3).version)
    assert gate.reboot().version == before.version
    assert gate.registry.champion() == before.version
    assert gate.reboot().version == before.version


def test_when_all_are_damaged_the_bundles_own_model_serves(gate: Gate) -> None:
    last = gate.crowned(GOOD, 1).version
    for version in (1, last):
        gate.damage(version)
    base = gate.reboot()
    assert base.version == last + 1
    record = gate.registry.get(base.version)
    assert (record.source, gate.registry.champion()) == ("bundle", base.version)


def test_when_not_even_that_can_be_loaded_it_is_said(gate: Gate) -> None:
    gate.damage(1)
    gate.base.write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be loaded"):
        gate.reboot()


def test_rollback_goes_to_the_model_before(gate: Gate) -> None:
    first, second = gate.champion.version, gate.crowned(GOOD, 1).version
    assert gate.models.roll_back(second, "command").version == first
    assert gate.registry.champion() == first
    assert gate.registry.get(second).status == "rolled_back"
    assert gate.registry.reigns(1)[0].reason == "command"
    assert gate.models.rollbacks == 1
    assert gate.reboot().version == first


def test_rollback_passes_over_damaged_models_and_those_rolled_back(gate: Gate) -> None:
    good = gate.crowned(GOOD, 1).version
    gate.damage(gate.crowned(GOOD, 2).version)
    last = gate.crowned(BAD, 3).version
    assert gate.models.roll_back(last, "it fails").version == good
    assert gate.models.roll_back(good, "it fails, too").version == 1


def test_rollback_to_a_version_that_was_asked_for(gate: Gate) -> None:
    wanted = gate.crowned(GOOD, 1).version
    gate.crowned(BAD, 2)
    last = gate.crowned(BAD, 3).version
    assert gate.models.roll_back(last, "command", to=wanted).version == wanted


@pytest.mark.parametrize("to", [None, 77])
def test_rollback_without_another_model_is_refused(gate: Gate, to: int | None) -> None:
    with pytest.raises(RefusedError, match="no other model"):
        gate.models.roll_back(gate.champion.version, "command", to=to)
    assert gate.registry.champion() == gate.champion.version


def test_a_confirmed_champion_is_proven(gate: Gate) -> None:
    version = gate.crowned(GOOD, 1).version
    gate.models.confirm(version)
    assert gate.registry.get(version).proven
    assert gate.registry.champion() == version


def test_what_a_candidate_was_probed_with_is_not_kept(tmp_path: Path) -> None:
    with closing(Gate(tmp_path, BAD)) as gate:
        _, served = gate.consider(GOOD)
        assert served is not None
        kept = sorted(path.name for path in (tmp_path / "models" / str(served.version)).iterdir())
        assert kept == ["manifest.json", "model.onnx"]
