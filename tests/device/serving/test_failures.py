"""Champions that fail on live samples, readings that are to blame themselves, and who answers then."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.domain.protocols import ServedModel
from edged.errors import ModelError
from tests.device.linear import BAD, BROKEN, GOOD, classes, inputs, numbered, samples, served
from tests.device.serving.test_predictor import Failing, Outlet, labels, make_server, serving

if TYPE_CHECKING:
    from edged.device.serving.predictor import Predictor
    from edged.domain.protocols import Model
    from tests.device.linear import Floats


class Particular:
    """A model around another one; it fails on batches that hold a value above `limit`."""

    def __init__(self, model: Model, limit: float, *, raises: bool) -> None:
        self._model, self._limit, self._raises = model, limit, raises

    def predict(self, x: Floats) -> Floats:
        out, beyond = self._model.predict(x), (x > self._limit).any(axis=1)
        if self._raises and beyond.any():
            raise ModelError("index out of bounds")
        out[beyond] = np.nan
        return out


def particular(folder: Path, version: int, *, raises: bool = False, limit: float = 50.0) -> ServedModel:
    return ServedModel(version, Particular(served(folder, version, GOOD).model, limit, raises=raises))


def with_outlier(n: int, row: int) -> Floats:
    x = inputs(n)
    x[row, 1] = 99.0
    return x


def on_probation(folder: Path, new: ServedModel, **gate: Any) -> Predictor:
    server = make_server(served(folder, 1, GOOD), **gate)
    server.swap(new)
    return server


@pytest.mark.parametrize("raises", [True, False])
def test_a_reading_that_no_model_takes_is_held_against_none(tmp_path: Path, raises: bool) -> None:
    server = make_server(particular(tmp_path, 1, raises=raises))
    server.swap(particular(tmp_path, 2, raises=raises))
    with serving(server) as outlet:
        for first in range(1, 1600, 16):
            outlet.submit(samples(first, with_outlier(16, 3)))
    assert server.champion.version == 2
    assert [p["output"] is None for p in outlet.published] == [i == 3 for i in range(16)] * 100
    assert server.unanswerable == 100
    assert outlet.loop.errors == 0


@pytest.mark.parametrize("raises", [True, False])
def test_a_model_that_misses_what_its_predecessor_answers_goes_within_its_probation(
    tmp_path: Path, raises: bool
) -> None:
    server = on_probation(tmp_path, particular(tmp_path, 2, raises=raises), probation=50)
    with serving(server) as outlet:
        for first in range(1, 321, 16):
            outlet.submit(samples(first, with_outlier(16, 3)))
    assert [version for version, _ in outlet.failed] == [2]
    assert "its predecessor answers" in outlet.failed[0][1]
    missing = [p["id"] for p in outlet.published if p["output"] is None]
    assert len(missing) == 9, "the tenth batch is answered by the predecessor already"
    assert len(outlet.published) == 320
    assert outlet.published[-1]["model"] == 1


def test_what_it_misses_after_its_probation_is_no_reason(tmp_path: Path) -> None:
    server = on_probation(tmp_path, particular(tmp_path, 2), probation=20)
    x = inputs(40)
    server.predict(numbered(1, 40), x)
    server.shadow(numbered(1, 40), x)
    assert server.label(numbered(1, 40), labels(x)) is True
    for first in range(41, 841, 16):
        server.predict(numbered(first, 16), with_outlier(16, 3))
    assert server.champion.version == 2


def test_a_failed_model_is_never_gone_back_to(tmp_path: Path) -> None:
    server = on_probation(tmp_path, served(tmp_path, 2, BROKEN))
    assert server.predict(numbered(1, 4), inputs(4)).version == 1
    assert server.previous is None


def test_without_a_predecessor_another_model_is_asked_for_and_no_prediction_is_lost(tmp_path: Path) -> None:
    server = make_server(ServedModel(5, Failing()))
    asked: list[int] = []

    class Rescuing(Outlet):
        def rescue(self, failing: ServedModel, reason: str) -> ServedModel | None:
            asked.append(failing.version)
            server.revert(served(tmp_path, 4, BROKEN) if len(asked) == 1 else served(tmp_path, 3, GOOD))
            return server.champion

    with serving(Rescuing(server)) as outlet:
        outlet.submit(samples(1, inputs(30)))
    assert asked == [5, 4]
    assert [p["model"] for p in outlet.published] == [3] * 30
    assert outlet.loop.errors == 0


def test_a_probation_goes_on_after_a_restart(tmp_path: Path) -> None:
    server = make_server(served(tmp_path, 2, BAD), probation=50)
    server.resume(served(tmp_path, 1, GOOD))
    with serving(server) as outlet:
        x = inputs(60)
        outlet.submit(samples(1, x, classes(x)))
    assert outlet.outcomes == [False]


def test_a_probation_without_labels_ends_in_time_and_proves_nothing(tmp_path: Path) -> None:
    server = on_probation(tmp_path, served(tmp_path, 2, BAD), probation=50, probation_time=100.0)
    x = inputs(60)
    server.expire_probation(1000.0)
    server.expire_probation(1099.0)
    server.predict(numbered(1, 60), x)
    server.shadow(numbered(1, 60), x)
    server.expire_probation(1101.0)
    assert server.label(numbered(1, 60), labels(x)) is None
    assert server.champion.version == 2


def test_each_probation_has_its_own_time(tmp_path: Path) -> None:
    server = on_probation(tmp_path, served(tmp_path, 2, GOOD), probation=50, probation_time=100.0)
    server.expire_probation(1000.0)
    server.swap(served(tmp_path, 3, BAD))
    server.expire_probation(1099.0)
    server.expire_probation(1150.0)
    x = inputs(60)
    server.predict(numbered(1, 60), x)
    server.shadow(numbered(1, 60), x)
    assert server.label(numbered(1, 60), labels(x)) is False
