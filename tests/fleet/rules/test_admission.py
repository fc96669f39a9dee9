"""One test for each way in which an update is refused."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zstandard

from edged.domain.federated.messages import BaseModelInfo, RoundAnnouncement, RoundSettings, UpdateHeader
from edged.domain.training.weight_coding import Coded, code
from edged.errors import RejectedUpdateError
from edged.fleet.rules.admission import admit, check_round, check_sender, largest
from edged.fleet.rules.layout import Layout
from edged.mqtt import weight_encoding

ID, BASE = "a" * 32, "b" * 64
WEIGHTS = {"w": np.full((6, 4), 0.05, np.float32), "b": np.full(6, 0.05, np.float32)}
LAYOUT = Layout.of(WEIGHTS)
SETTINGS = RoundSettings(clip_norm=1.0)
UPDATE = UpdateHeader("a", 3, ID, BASE, 10, 1, "0" * 64)
ROUND = RoundAnnouncement(
    "plant", 3, ID, "open", "f00", BaseModelInfo(BASE, 10, 1), 0.0, 100.0, 5.0, ("a",), SETTINGS
)


def said(blob: bytes, **fields: Any) -> UpdateHeader:
    honest = replace(UPDATE, bytes=len(blob), sha256=hashlib.sha256(blob).hexdigest())
    return replace(honest, **fields)


def packed(weights: dict[str, Any] = WEIGHTS) -> bytes:
    return weight_encoding.pack_coded(code(weights, "int8"))


def reason(call: Callable[[], object]) -> str:
    with pytest.raises(RejectedUpdateError) as refused:
        call()
    return refused.value.reason


def refused(blob: bytes, **fields: Any) -> str:
    return reason(lambda: admit(said(blob, **fields), blob, LAYOUT, SETTINGS))


def test_a_good_one_is_taken_as_it_is() -> None:
    blob = packed()
    admitted = admit(said(blob), blob, LAYOUT, SETTINGS)
    assert admitted.factor == 1.0
    assert admitted.norm == pytest.approx(0.05 * np.sqrt(30), rel=1e-3)
    assert np.allclose(LAYOUT.change(admitted.row), LAYOUT.vector(WEIGHTS), rtol=1e-2)


@pytest.mark.parametrize("samples", [0, -5])
def test_samples_that_are_not_plausible(samples: int) -> None:
    assert refused(packed(), samples=samples) == "samples"


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, 3e38])
def test_scales_that_are_not_finite(scale: float) -> None:
    tensor = Coded(np.full((6, 4), 127, np.int8), np.float32(scale) * np.ones((), np.float32))
    assert refused(weight_encoding.pack_coded({"w": tensor})) == "not_finite"


@pytest.mark.parametrize(
    "weights",
    [
        {"w": np.ones(1, np.float32)},
        {"w": np.ones((4, 6), np.float32)},
        {"other": np.ones((6, 4), np.float32)},
        {"b": np.ones((6, 1), np.float32)},
    ],
)
def test_names_and_shapes_that_are_not_those_of_the_model(weights: dict[str, Any]) -> None:
    assert refused(packed(weights)) == "shapes"


@pytest.mark.parametrize(
    "tensor",
    [
        Coded(np.ones((6, 4), np.int8)),
        Coded(np.ones((6, 4), np.float32)),
        Coded(np.ones((6, 4), np.float32), np.ones((), np.float32)),
    ],
)
def test_types_that_do_not_go_with_their_scales(tensor: Coded) -> None:
    assert refused(weight_encoding.pack_coded({"w": tensor})) == "shapes"


def test_numbers_of_another_type_are_damage() -> None:
    assert refused(weight_encoding.pack_coded({"w": Coded(np.ones((6, 4), np.float16))})) == "damaged"


def test_one_scale_for_each_element_of_a_vector() -> None:
    assert (
        refused(weight_encoding.pack_coded({"b": Coded(np.ones(6, np.int8), np.ones(6, np.float32))}))
        == "shapes"
    )


@pytest.mark.parametrize(
    "blob", [b"x", b"\x28\xb5\x2f\xfd" + bytes(40), zstandard.compress(b"no safetensors")]
)
def test_what_cannot_be_unpacked(blob: bytes) -> None:
    assert refused(blob) == "damaged"


def test_a_blob_that_its_line_does_not_describe() -> None:
    blob = packed()
    assert refused(blob, sha256="0" * 64) == "damaged"
    assert refused(blob, bytes=len(blob) + 1) == "damaged"


def test_a_bomb_is_not_unpacked() -> None:
    size = 1 << 28
    packer = zstandard.ZstdCompressor().compressobj(size=size)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()
    assert len(bomb) < largest(LAYOUT)
    tracemalloc.start()
    try:
        assert refused(bomb) == "damaged"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_size_that_no_update_has_is_not_even_hashed() -> None:
    assert refused(packed(), bytes=largest(LAYOUT) + 1) == "size"


def test_norms_are_clipped_and_far_beyond_that_refused() -> None:
    blob = packed({"w": np.full((6, 4), 0.5, np.float32)})
    admitted = admit(said(blob), blob, LAYOUT, SETTINGS)
    assert admitted.factor * admitted.norm == pytest.approx(1.0)
    assert refused(packed({"w": np.full((6, 4), 10.0, np.float32)})) == "norm"


def test_the_line_says_what_the_topic_says() -> None:
    check_sender(UPDATE, "a", 3, None)
    check_sender(replace(UPDATE, parts=2, part=1), "a", 3, 1)
    assert reason(lambda: check_sender(UPDATE, "b", 3, None)) == "identity"
    assert reason(lambda: check_sender(UPDATE, "a", 4, None)) == "malformed"
    assert reason(lambda: check_sender(UPDATE, "a", 3, 0)) == "malformed"
    assert reason(lambda: check_sender(replace(UPDATE, parts=2), "a", 3, None)) == "malformed"


def test_only_updates_for_the_open_round_are_taken() -> None:
    check_round(UPDATE, ROUND)
    cases = {
        "late": (replace(UPDATE, round=2, id="c" * 32), ROUND),
        "round": (replace(UPDATE, id="c" * 32), ROUND),
        "base": (replace(UPDATE, base="c" * 64), ROUND),
        "not_chosen": (replace(UPDATE, device="z"), ROUND),
    }
    for expected, (update, announced) in cases.items():
        assert reason(lambda update=update, announced=announced: check_round(update, announced)) == expected  # type: ignore[misc]
    for state in ("closed", "done"):
        assert reason(lambda state=state: check_round(UPDATE, replace(ROUND, state=state))) == "late"  # type: ignore[misc]
    assert reason(lambda: check_round(replace(UPDATE, round=9, id="c" * 32), ROUND)) == "round"
