"""What a model sees samples beside: the same over restarts, failed commits, and logs of other models."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.domain.stream.temporal_context import TemporalContext
from edged.storage.samples.log import SampleLog
from tests.device.dock import CLASSIFY, Dock, again, delivery
from tests.storage.stream import batch, open_log, stored_inputs

if TYPE_CHECKING:
    from edged.domain.stream.schema import Schema

HALF_LIVES = (2.0, 8.0)
STREAM: dict[str, Any] = {**CLASSIFY, "context": list(HALF_LIVES)}


def messages(first: int, n: int) -> list[Any]:
    """Of two machines in turn, values that rise and jump."""
    return [delivery(mid, f"s/m{mid % 2}", x=[mid, mid % 7]) for mid in range(first, first + n)]


def expected(n: int) -> np.ndarray:
    """The inputs of messages 1 to `n`, computed in one go."""
    x = np.array([[mid, mid % 7] for mid in range(1, n + 1)], np.float32)
    return TemporalContext(HALF_LIVES, 2).extend([f"m{mid % 2}" for mid in range(1, n + 1)], x)


def stored(dock: Dock) -> np.ndarray:
    return stored_inputs(dock.path, dock.schema.width)


@pytest.mark.parametrize("restart", [False, True])
def test_predictions_and_log_have_the_context_also_after_a_restart(tmp_path: Path, restart: bool) -> None:
    with closing(Dock(tmp_path, STREAM)) as dock:
        for first in (1, 11, 12, 40):
            dock.work(messages(first, {1: 10, 11: 1, 12: 28, 40: 11}[first]))
            if restart:
                dock.close()
                dock.open()
        np.testing.assert_allclose(stored(dock), expected(50), atol=1e-4)
        predicted = np.concatenate([batch.x for batch in dock.batches])
        assert np.array_equal(predicted, stored(dock))


def test_samples_that_are_delivered_again_after_an_error_have_the_context_they_had(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, STREAM)) as dock:
        dock.work(messages(1, 10))
        lost = messages(11, 5)
        dock.on_batch = fail
        for one in lost:
            dock.ingestor.receive(one)
        dock.turn()
        assert dock.redeliveries == 1
        dock.on_batch = dock._on_batch  # noqa: SLF001  what it did before
        dock.work([again(one) for one in lost])
        np.testing.assert_allclose(stored(dock), expected(15), atol=1e-4)


def fail(*_: Any) -> None:
    raise ArithmeticError("nobody foresaw this")


def with_context(schema: Schema, half_lives: tuple[float, ...]) -> Schema:
    return replace(schema, width=schema.measured * (1 + len(half_lives)), context=half_lives)


def test_a_log_serves_models_with_and_without_context(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        narrow = log._schema  # noqa: SLF001  that of the stream
        log.commit(batch(1, 5, labels=[0.0] * 5))
    wide = with_context(narrow, HALF_LIVES)
    with SampleLog.open(tmp_path / "samples.db", wide) as log:
        rows = batch(6, 5, labels=[0.0] * 5)
        context = TemporalContext(HALF_LIVES, narrow.width)
        log.commit(replace(rows, x=context.extend(rows.keys, rows.x)))
        window = log.rows(np.arange(1, 11))
        assert window.x.shape == (10, wide.width)
        assert not window.x[:5, narrow.width :].any(), "stored without context: as usual as can be"
        assert window.x[6:, narrow.width :].all()
        keys, newest = log.newest_by_key(100)
        assert (keys, newest.tolist()) == (["m0"], window.x[-1:].tolist())
        assert log.drop_damaged(10.0) == 0
    with SampleLog.open(tmp_path / "samples.db", narrow, readonly=True) as log:
        assert np.array_equal(log.rows(np.arange(1, 11)).x, window.x[:, : narrow.width])
    other = with_context(narrow, (5.0,))
    with SampleLog.open(tmp_path / "samples.db", other, readonly=True) as log:
        assert log.newest_by_key(100)[0] == [], "means of other half-lives say nothing of these"
