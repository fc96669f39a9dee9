"""Attention of newer opsets: values as in the specification, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from edged.bundles.source.normalise import conform, parameter_names
from edged.bundles.source.opset import servable_form
from edged.engines.runtime import ort
from edged.errors import BundleError
from tests.bundles.autodiff.cases import Case, labels, of
from tests.bundles.autodiff.oracle import judge

NEWEST = int(onnx.defs.onnx_opset_version())
HIDDEN = np.array([[True, False, True, True], [False] * 4, [True, True, False, False]])
ADDED = np.where(HIDDEN, np.float32(0.5), np.float32(-np.inf))
"""Masks of three queries and four keys, the second query without any key."""


def four(heads: int = 2, own: int = 2, keys: int = 4, values: int = 3, queries: int = 3) -> dict[str, Any]:
    """Query, key and value with the heads apart."""
    return {"q": of("b", heads, queries, 3), "k": of("b", own, keys, 3), "v": of("b", own, keys, values)}


def three(heads: int = 2, own: int = 2, keys: int = 4, values: int = 3) -> dict[str, Any]:
    """The same with the heads side by side."""
    return {"q": of("b", 3, 3 * heads), "k": of("b", keys, 3 * own), "v": of("b", keys, values * own)}


HEADS = "q_num_heads = 2, kv_num_heads = 2"
GROUPS = "q_num_heads = 4, kv_num_heads = 2"
PAST = {"pk": of("b", 2, 2, 3), "pv": of("b", 2, 2, 3)}


def attention(
    tensors: dict[str, Any],
    attributes: str = "",
    inputs: str = "q, k, v",
    outputs: str = "y",
    *,
    ends: tuple[str, ...] = ("y",),
    opset: int = 23,
    reference: str = "",
) -> Case:
    body = f"{outputs} = Attention{f'<{attributes}>' if attributes else ''}({inputs})"
    return Case(body, tensors, rows=(3, 1), ends=ends, opset=opset, reference=reference)


CASES = [
    attention(four()),
    attention(four(values=5)),
    attention(four(heads=4)),
    attention(four(heads=4, own=1)),
    attention(four(), "scale = 0.3"),
    attention(four(), "scale = 0.3, softcap = 0.7"),
    attention(four(), "softcap = 2.0"),
    *(
        attention(four(), f"softmax_precision = {kind}", reference="y = Attention(q, k, v)")
        for kind in (TensorProto.FLOAT, TensorProto.DOUBLE)
    ),
    attention(four(), "is_causal = 1"),
    attention(four(queries=4), "is_causal = 1"),
    attention(four(queries=5, keys=2), "is_causal = 1"),
    attention(four(heads=4), "is_causal = 1, softcap = 1.0"),
    attention(three(), HEADS),
    attention(three(values=5), HEADS),
    attention(three(heads=4), GROUPS),
    attention(three(heads=4, values=2), f"{GROUPS}, scale = 0.5, softcap = 1.5"),
    attention(three(), f"{HEADS}, is_causal = 1"),
    attention(three(heads=4), f"{GROUPS}, is_causal = 1"),
    # The same tensor three times.
    attention({"x": of("b", 4, 6)}, HEADS, "x, x, x"),
    attention({"x": of("b", 4, 6)}, f"{HEADS}, is_causal = 1", "x, x, x"),
    # Masks: of all heads, of each, of each row; without a key for some; computed ones.
    *(
        attention(four() | {"m": mask}, attributes, "q, k, v, m")
        for mask in (
            HIDDEN,
            HIDDEN[[0, 2, 0]],
            np.stack([HIDDEN, ~HIDDEN]),
            np.stack([HIDDEN, ~HIDDEN])[None],
            ADDED,
        )
        for attributes in ("", "is_causal = 1")
    ),
    attention(three(heads=4) | {"m": HIDDEN}, f"{GROUPS}, softcap = 1.0", "q, k, v, m"),
    attention(four() | {"m": of("b", 1, 3, 4)}, "softcap = 1.0", "q, k, v, m"),
    attention(four() | {"m": of("b", 2, 3, 4)}, "is_causal = 1", "q, k, v, m"),
    attention(four() | {"m": of(2, 3, 4)}, "", "q, k, v, m"),
    # What generates text: outputs that nobody reads, and a local window.
    attention(four(), "", "q, k, v", "y, nk, nv"),
    attention(four(queries=4), "left_window_size = 1", opset=25),
]


@pytest.mark.parametrize("case", [c for c in CASES if c.opset <= NEWEST], ids=str)
def test_values_and_gradients(case: Case) -> None:
    model, values = case.model(), case.values(2)
    expected = ReferenceEvaluator(model).run(None, {name: values[name] for name in case.inputs})
    made = servable_form(model)
    found = ort.session(made.SerializeToString()).run(None, {name: values[name] for name in case.inputs})
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, 1e-4, 1e-5)
    judge(case, made)


def parameters(body: str, tensors: dict[str, Any], sizes: list[int]) -> list[str]:
    """Names of the parameters of a model of opset 23 with input `x (batch, 4, 6)`."""
    model = Case(body, {"x": of("b", 4, 6), "w": of(6, 6)} | tensors, opset=23).model()
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", *sizes]))
    return parameter_names(conform(model).graph)


def test_masks_are_no_parameters() -> None:
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    body = f"v = MatMul(x, w) y = Attention<{HEADS}>(x, x, v, mask)"
    assert parameters(body, {"mask": mask}, [4, 6]) == ["w"]
    assert parameters(body, {"mask": np.maximum(mask, -1e9)}, [4, 6]) == ["w"]
    assert parameters(body, {"mask": np.maximum(mask, -2)}, [4, 6]) == ["w", "mask"]


@pytest.mark.parametrize(
    ("tensors", "inputs", "opset"),
    [(PAST, "q, k, v, , pk, pv", 23), ({"n": labels(3, "b")}, "q, k, v, , , , n", 24)],
)
def test_a_cache_is_refused_by_name_with_a_remedy(tensors: dict[str, Any], inputs: str, opset: int) -> None:
    if opset > NEWEST:
        pytest.skip("this onnx does not have the opset")
    with pytest.raises(BundleError, match="operator Attention cannot be expanded in this form") as raised:
        servable_form(attention(four() | tensors, "", inputs, opset=opset).model())
    assert raised.value.where == "node Attention.0"
    assert raised.value.remedy == "export it in simpler operators"


def test_heads_of_unknown_number_are_refused_by_name() -> None:
    with pytest.raises(BundleError, match=r"node name: Attention\.1"):
        parameters("v = MatMul(x, w) y = Attention(x, x, v)", {}, [4, 6])


def test_a_mask_for_fewer_keys_is_refused_by_name_with_a_remedy() -> None:
    with pytest.raises(BundleError, match=r"Attention\.1.*a mask of Attention needs a column for each key"):
        parameters(
            f"v = MatMul(x, w) y = Attention<{HEADS}>(x, x, v, m)", {"m": np.ones((4, 3), bool)}, [4, 6]
        )
