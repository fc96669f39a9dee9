"""Which form of an accepted candidate serves, and that it is the same one after whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edged.bundles.export.int8 import Quantiser
from edged.domain.labels.label_trust import LabelTrust
from edged.storage.models.registry import Registry
from tests.device.gates import Gate
from tests.device.linear import BAD, BROKEN, GOOD, candidate, inputs, write

if TYPE_CHECKING:
    from edged.domain.judging.verdict import Verdict
    from edged.domain.protocols import ServedModel


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """The champion is always wrong, and models are to be served as int8."""
    with closing(Gate(tmp_path, BAD, int8=True)) as made:
        yield made


def stored(gate: Gate, version: int) -> list[str]:
    """Names of the model files of a version."""
    return sorted(path.name for path in (gate.folder / "models" / str(version)).glob("model*"))


def slope(served: ServedModel) -> float:
    """What tells the stand-ins apart: they answer with slope times the first value."""
    return float(served.model.predict(np.ones((1, 3), np.float32))[0, -1])


def as_float32(verdict: Verdict, model: ServedModel | None, reason: str) -> None:
    """The candidate serves, in its usual form, and the verdict says why."""
    assert verdict.accepted
    assert model is not None
    assert (verdict.form, model.form) == ("float32", "float32")
    assert reason in verdict.reasons[-1]
    assert verdict.reasons[-1].startswith("served as float32")


def test_a_quantised_form_that_is_as_good_serves_and_both_are_told(gate: Gate) -> None:
    verdict, model = gate.consider(GOOD, int8=GOOD * 1.01)
    assert model is not None
    assert (verdict.accepted, verdict.form, model.form) == (True, "int8", "int8")
    assert slope(model) == pytest.approx(1.01)
    assert verdict.numbers["int8_error"] == verdict.numbers["float32_error"] == 0.0
    assert verdict.numbers["int8_samples"] > 50
    assert verdict.numbers["int8_latency_s"] > 0
    assert verdict.reasons[-1].startswith("served as int8: right in 60 of 60 held-back cases")
    record = gate.registry.get(model.version)
    assert record.verdict == verdict
    assert (verdict.to_json()["form"], record.data.form) == ("int8", "int8")
    assert stored(gate, model.version) == ["model.int8.onnx", "model.onnx"]


def test_what_onnxruntime_computes_in_eight_bits_passes(gate: Gate, tmp_path: Path) -> None:
    plain = onnx.load(str(write(tmp_path / "plain.onnx", GOOD)))
    names = [tensor.name for tensor in plain.graph.initializer]
    content = Quantiser(plain, names).run().SerializeToString()
    verdict, model = gate.consider(GOOD, int8=content)
    assert model is not None
    assert verdict.form == "int8"
    assert slope(model) == pytest.approx(1.0, abs=0.02)


def test_a_quantised_form_that_loses_more_than_may_be_lost_does_not_serve(gate: Gate) -> None:
    verdict, model = gate.consider(GOOD, int8=BAD)
    as_float32(verdict, model, "right in 0 of 60 held-back cases as int8, in 60 as float32")
    assert model is not None
    assert slope(model) == GOOD
    assert verdict.numbers["int8_error"] == 1.0
    assert verdict.numbers["int8_gain"] == -1.0
    assert stored(gate, model.version) == ["model.onnx"]


def test_the_gate_judges_the_form_that_would_serve(tmp_path: Path) -> None:
    """As near to its other form as is allowed, but worse than the champion that it would replace."""
    with closing(Gate(tmp_path, GOOD, int8=True, max_regret=1.0)) as gate:
        as_float32(*gate.consider(GOOD, int8=BAD), "the gate rejects int8: right in 0 of ")


@pytest.mark.parametrize(
    ("int8", "reason"),
    [
        (None, "its bundle has no int8 form"),
        (BROKEN, "another shape or are not finite"),
        (b"no model", "cannot be loaded"),
    ],
)
def test_without_a_form_that_works_float32_serves(gate: Gate, int8: Any, reason: str) -> None:
    as_float32(*gate.consider(GOOD, int8=int8), reason)


def slowed(model: onnx.ModelProto, rounds: int) -> bytes:
    """The same network, with a loop behind it that does nothing for long."""
    graph, kinds = model.graph, onnx.TensorProto
    last, first = graph.output[0].name, "first"
    for node in graph.node:
        node.output[:] = [first if name == last else name for name in node.output]
    value = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("i", kinds.INT64, []), ("on", kinds.BOOL, []), ("x", kinds.FLOAT, None),
            ("still", kinds.BOOL, []), ("y", kinds.FLOAT, None),
        )
    ]  # fmt: skip
    nodes = [helper.make_node("Identity", ["on"], ["still"]), helper.make_node("Abs", ["x"], ["y"])]
    body = helper.make_graph(nodes, "body", value[:3], value[3:])
    graph.initializer.append(numpy_helper.from_array(np.array(rounds), "rounds"))
    graph.initializer.append(numpy_helper.from_array(np.array(True), "always"))
    graph.node.append(helper.make_node("Loop", ["rounds", "always", first], [last], body=body))
    return bytes(model.SerializeToString())


def test_a_quantised_form_that_is_too_slow_does_not_serve(tmp_path: Path, gate: Gate) -> None:
    slow = slowed(onnx.load(str(write(tmp_path / "slow.onnx", GOOD))), 30_000)
    gate.settings["latency"] = 0.004
    gate.open_parts()
    as_float32(*gate.consider(GOOD, int8=slow), "ms allowed")


def test_without_enough_holdout_the_first_model_serves_as_float32(tmp_path: Path) -> None:
    with closing(Gate(tmp_path, GOOD, samples=10, int8=True)) as gate:
        result = candidate(gate.candidates, 1, BAD, int8=BAD)
        verdict, model = gate.judge(result, first=True)
        as_float32(verdict, model, "labelled held-back cases, 5 needed")


def test_the_first_model_is_not_compared_with_the_bundles_own(tmp_path: Path) -> None:
    with closing(Gate(tmp_path, GOOD, int8=True)) as gate:
        result = candidate(gate.candidates, 1, BAD, int8=BAD)
        verdict, model = gate.judge(result, first=True)
        assert model is not None
        assert verdict.form == "int8"


def test_a_refused_candidate_has_no_form_to_choose(tmp_path: Path) -> None:
    with closing(Gate(tmp_path, GOOD, int8=True)) as gate:
        verdict, model = gate.consider(BAD, int8=GOOD)
        assert (verdict.accepted, model) == (False, None)
        assert "int8_error" not in verdict.numbers
        assert stored(gate, gate.registry.records()[-1].version) == ["model.onnx"]


def test_a_dry_run_is_told_the_form(gate: Gate) -> None:
    dry = candidate(gate.candidates, 1, GOOD, int8=GOOD)
    verdict = gate.evaluator.evaluate(dry, gate.champion, rehearsal=True).verdict
    assert (verdict.accepted, verdict.form) == (True, "int8")


def test_what_is_not_wanted_is_not_asked_for(tmp_path: Path) -> None:
    with closing(Gate(tmp_path, BAD)) as gate:
        verdict, model = gate.consider(GOOD, int8=GOOD)
        assert model is not None
        assert (verdict.form, verdict.reasons) == ("float32", verdict.reasons[:1])
        assert stored(gate, model.version) == ["model.onnx"]


# ---- the same form again ---------------------------------------------------------------------


def crowned(gate: Gate, run: int, slope: float, int8: float) -> ServedModel:
    model = gate.consider(slope, run=run, int8=int8)[1]
    assert model is not None
    gate.models.set_champion(model.version, f"run {run}")
    gate.champion = model
    return model


def test_restart_rollback_and_recall_bring_back_the_same_form(gate: Gate) -> None:
    first = crowned(gate, 1, GOOD, GOOD * 1.01)
    second = crowned(gate, 2, GOOD, BAD)
    assert (first.form, second.form) == ("int8", "float32")
    assert gate.reboot().form == "float32"
    back = gate.models.roll_back(second.version, "test")
    assert (back.version, back.form, slope(back)) == (first.version, "int8", slope(first))
    again = gate.reboot()
    assert (again.version, again.form, slope(again)) == (first.version, "int8", slope(first))
    known = gate.models.open(first.version).model.predict(inputs(50))
    np.testing.assert_array_equal(known, again.model.predict(inputs(50)))


def test_a_lost_database_does_not_lose_the_form(gate: Gate) -> None:
    model = crowned(gate, 1, GOOD, GOOD * 1.01)
    gate.registry.close()
    for path in gate.folder.glob("state.db*"):
        path.unlink()
    gate.registry = Registry.open(gate.folder)
    gate.open_parts()
    served = gate.models.boot(gate.base)
    assert (served.version, served.form) == (model.version, "int8")


def test_switched_off_models_serve_as_float32_again(gate: Gate) -> None:
    model = crowned(gate, 1, GOOD, GOOD * 1.01)
    gate.int8 = False
    served = gate.reboot()
    assert (served.version, served.form, slope(served)) == (model.version, "float32", GOOD)


def test_a_damaged_quantised_file_is_no_model_any_more(gate: Gate) -> None:
    model = crowned(gate, 1, GOOD, GOOD)
    path = gate.folder / "models" / str(model.version) / "model.int8.onnx"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    served = gate.reboot()
    assert served.version == 1, "the one before serves"
    assert gate.models.unusable == [model.version]


def test_the_trust_in_labels_does_not_hear_of_forms(gate: Gate) -> None:
    before = LabelTrust.load("classify", None).dump()
    gate.consider(GOOD, int8=BAD)
    assert gate.evaluator.trust.suspicious == LabelTrust.load("classify", None).suspicious
    assert gate.evaluator.trust.dump().keys() == before.keys()
