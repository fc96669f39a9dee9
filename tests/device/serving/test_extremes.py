"""Readings that no model can answer, and what must not follow from them."""

from __future__ import annotations

from pathlib import Path

from tests.device.linear import inputs, samples, served
from tests.device.serving.test_predictor import make_server, serving


def test_one_extreme_reading_does_not_dethrone_the_champion(tmp_path: Path) -> None:
    server = make_server(served(tmp_path, 1, 100.0))
    server.swap(served(tmp_path, 2, 100.0))
    x = inputs(16)
    x[5, 0] = 3e38
    with serving(server) as outlet:
        outlet.submit(samples(1, x))
    answered = outlet.published
    assert server.champion.version == 2
    assert [a["output"] is None for a in answered] == [i == 5 for i in range(16)]
    assert answered[5]["label"] is None
    assert server.unanswerable == 1


def test_its_label_does_not_count_against_the_live_quality(tmp_path: Path) -> None:
    server = make_server(served(tmp_path, 1, 100.0))
    x = inputs(4)
    x[2, 0] = 3e38
    made = server.predict(samples(1, x).offsets, x)
    server.label(made.offsets, made.answers * 0)
    assert server.quality.count == 3
