"""Picking, cutting, joining, reducing and repeating: gradients against the native engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edged.errors import BundleError
from tests.building import build
from tests.bundles.engines_agree.gradients import assert_equal, both_gradients
from tests.bundles.engines_agree.shaped import Shaped
from tests.installed import ENGINES


def assert_agreement(make: Callable[[Shaped], str], folder: Path) -> None:
    """Compare gradients of a network around what `make` does with `h (batch, 3, 4)`."""
    net = Shaped(3, 4)
    assert_equal(*both_gradients(net.model(make(net)), folder))


def int64(value: Any) -> np.ndarray:
    return np.array(value, np.int64)


@pytest.mark.parametrize("axis", [1, 2, -1])
@pytest.mark.parametrize("indices", [1, -1, [0, 2, 0], [[0, -1], [1, 1]]], ids=str)
def test_elements_of_an_axis(tmp_path: Path, axis: int, indices: Any) -> None:
    assert_agreement(lambda net: net.add("Gather", "h", net.tensor(int64(indices)), axis=axis), tmp_path)


def test_rows_of_an_embedding_table_by_a_float_input(tmp_path: Path) -> None:
    def embedded(net: Shaped) -> str:
        places = net.add("Cast", net.add("Abs", "input"), to=onnx.TensorProto.INT64)
        return net.add("Mul", net.add("Gather", net.weight(9, 5), places), net.number(1))

    native, portable = both_gradients(_with(embedded), tmp_path, rows=30)
    assert "native" not in ENGINES or "GatherGrad" in _training(tmp_path)
    assert_equal(native, portable)


def _with(make: Callable[[Shaped], str]) -> onnx.ModelProto:
    # The first layer is read by nobody here.
    net = Shaped(1)
    end = net.add("Add", net.add("Flatten", make(net)), net.add("Flatten", "h"))
    return net.model(end)


def _training(folder: Path) -> set[str]:
    return {node.op_type for node in onnx.load(str(folder / "native" / "training_model.onnx")).graph.node}


SLICES: dict[str, tuple[list[int], list[int], list[int], list[int]]] = {
    "part": ([1], [3], [2], [1]),
    "from the end": ([-3], [-1], [-1], [1]),
    "beyond the end": ([1], [2**40], [1], [1]),
    "nothing in front": ([-(2**40)], [2], [1], [1]),
    "every second": ([0], [4], [2], [2]),
    "back": ([-1], [-(2**40)], [2], [-1]),
    "two axes, one back": ([0, 3], [2, 0], [1, 2], [1, -2]),
    "one element": ([2], [3], [1], [1]),
}


@pytest.mark.parametrize("name", SLICES)
def test_a_slice(tmp_path: Path, name: str) -> None:
    assert_agreement(lambda net: net.add("Slice", "h", *(net.ints(*part) for part in SLICES[name])), tmp_path)


def test_a_slice_without_axes(tmp_path: Path) -> None:
    assert_agreement(lambda net: net.add("Slice", "h", net.ints(0, 1, 0), net.ints(2**40, 3, 2)), tmp_path)


def test_a_slice_with_computed_bounds(tmp_path: Path) -> None:
    def cut(net: Shaped) -> str:
        end = net.add("Shape", "h", start=1, end=2)
        return net.add("Slice", "h", net.ints(1), end, net.ints(2))

    assert_agreement(cut, tmp_path)


def test_elements_by_places_of_their_own(tmp_path: Path) -> None:
    def largest(net: Shaped) -> str:
        places = net.add("ArgMax", "h", axis=2, keepdims=1)
        return net.add("GatherElements", "h", net.add("Concat", places, places, axis=2), axis=2)

    assert_agreement(largest, tmp_path)
    assert "native" not in ENGINES or "GatherElementsGrad" in _training(tmp_path)


def test_blocks_by_their_coordinates(tmp_path: Path) -> None:
    def picked(net: Shaped) -> str:
        turned = net.add("Transpose", "h", perm=[1, 2, 0])
        blocks = net.add("GatherND", turned, net.tensor(int64([[0, 1], [2, 3], [0, 1]])))
        return net.add("Transpose", blocks, perm=[1, 0])

    assert_agreement(picked, tmp_path)


@pytest.mark.parametrize("pads", [(0, 1, 0, 0, 2, 1), (0, 0, 0, 0, 0, 3), (0, -1, 0, 0, 0, 1)], ids=str)
@pytest.mark.parametrize("value", [None, 0.5])
def test_padding(tmp_path: Path, pads: tuple[int, ...], value: float | None) -> None:
    assert_agreement(
        lambda net: net.add("Pad", "h", net.ints(*pads), *([] if value is None else [net.number(value)])),
        tmp_path,
    )


REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceSumSquare",
)  # fmt: skip


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [[1], [-1], [1, 2]], ids=str)
@pytest.mark.parametrize("operator", REDUCTIONS)
def test_a_reduction(tmp_path: Path, operator: str, axes: list[int], keep: int) -> None:
    assert_agreement(lambda net: net.add(operator, net.add("Exp", "h"), axes=axes, keepdims=keep), tmp_path)


@pytest.mark.parametrize("keep", [0, 1])
def test_a_sum(tmp_path: Path, keep: int) -> None:
    assert_agreement(lambda net: net.add("ReduceSum", "h", net.ints(1, -1), keepdims=keep), tmp_path)


def test_parts_of_different_lengths_joined_again(tmp_path: Path) -> None:
    def exchanged(net: Shaped) -> str:
        left, middle, right = net.split("h", 1, 2, 1, axis=2)
        return net.add("Concat", right, net.add("Tanh", middle), left, "h", axis=-1)

    assert_agreement(exchanged, tmp_path)


def test_a_part_that_nobody_reads(tmp_path: Path) -> None:
    assert_agreement(lambda net: net.add("Tanh", net.split("h", 1, 2, axis=1)[1]), tmp_path)


def test_a_parameter_joined_to_every_row(tmp_path: Path) -> None:
    def with_token(net: Shaped) -> str:
        rows = net.add("Shape", "h", start=0, end=1)
        shape = net.add("Concat", rows, net.ints(1, 4), axis=0)
        return net.add("Concat", net.add("Expand", net.weight(1, 1, 4), shape), "h", axis=1)

    assert_agreement(with_token, tmp_path)


def test_a_choice_between_operands_that_are_repeated(tmp_path: Path) -> None:
    def chosen(net: Shaped) -> str:
        positive = net.add("Greater", "h", net.number(0))
        low = net.add("Where", positive, "h", net.weight(1, 4))
        return net.add("Where", positive, net.weight(3, 1), low)

    assert_agreement(chosen, tmp_path)


OPERANDS: dict[str, Callable[[Shaped], str]] = {
    "vector": lambda net: net.weight(4),
    "column": lambda net: net.weight(3, 1),
    "matrix": lambda net: net.weight(1, 3, 4),
    "number": lambda net: net.number(1.5),
    "mean": lambda net: net.add("ReduceMean", "h", axes=[2], keepdims=1),
}


@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "Mean"])
@pytest.mark.parametrize("turned", [False, True])
def test_arithmetic_with_operands_that_are_repeated(
    tmp_path: Path, operator: str, operand: str, turned: bool
) -> None:
    def combined(net: Shaped) -> str:
        # What something is divided by is not near 0.
        pair = net.add("Exp", "h") if operator == "Div" else "h", net.add("Exp", OPERANDS[operand](net))
        return net.add(operator, *(pair[::-1] if turned else pair))

    assert_agreement(combined, tmp_path)


@pytest.mark.parametrize("exponent", [0.5, 2.0, 3.0])
def test_a_power(tmp_path: Path, exponent: float) -> None:
    assert_agreement(lambda net: net.add("Pow", net.add("Exp", "h"), net.number(exponent)), tmp_path)


@pytest.mark.parametrize("operator", ["Sqrt", "Log", "Reciprocal"])
def test_a_function_of_positive_numbers(tmp_path: Path, operator: str) -> None:
    assert_agreement(lambda net: net.add(operator, net.add("Exp", "h")), tmp_path)


@pytest.mark.parametrize("upper", [0, 1])
def test_a_triangle(tmp_path: Path, upper: int) -> None:
    assert_agreement(lambda net: net.add("Trilu", "h", upper=upper), tmp_path)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("axis", [1, 2])
def test_a_layer_normalisation(tmp_path: Path, axis: int, bias: bool) -> None:
    shape = (3, 4)[axis - 1 :]

    def normal(net: Shaped) -> str:
        return net.add("LayerNormalization", "h", *(net.weight(*shape) for _ in range(1 + bias)), axis=axis)

    assert_agreement(normal, tmp_path)


@pytest.mark.parametrize("heads", [1, 2])
def test_attention_with_heads(tmp_path: Path, heads: int) -> None:
    def attended(net: Shaped) -> str:
        def parted(perm: list[int]) -> str:
            projected = net.add("Add", net.add("MatMul", "h", net.weight(4, 4)), net.weight(4))
            split = net.add("Reshape", projected, net.ints(0, 3, heads, 4 // heads))
            return net.add("Transpose", split, perm=perm)

        scores = net.add("MatMul", parted([0, 2, 1, 3]), parted([0, 2, 3, 1]))
        scaled = net.add("Div", scores, net.number(np.sqrt(4 / heads)))
        mixed = net.add("MatMul", net.add("Softmax", scaled, axis=-1), parted([0, 2, 1, 3]))
        joined = net.add("Reshape", net.add("Transpose", mixed, perm=[0, 2, 1, 3]), net.ints(0, 0, 4))
        residual = net.add("Add", "h", joined)
        return net.add("LayerNormalization", residual, net.weight(4), net.weight(4), axis=-1)

    assert_agreement(attended, tmp_path)


REFUSED: dict[str, Callable[[Shaped], str]] = {
    "Einsum": lambda net: net.add("Einsum", "h", net.weight(4, 4), equation="b...j,jk->b...k"),
    "Sinh": lambda net: net.add("Sinh", "h"),
    "ReduceProd": lambda net: net.add("ReduceProd", "h", axes=[2]),
}


@pytest.mark.parametrize("operator", REFUSED)
def test_what_has_no_gradient_is_refused_by_node_and_operator(tmp_path: Path, operator: str) -> None:
    net = Shaped(3, 4)
    end = REFUSED[operator](net)
    with pytest.raises(BundleError) as caught:
        build(net.model(end), tmp_path / "b", loss="mse")
    assert f"n{end}" in caught.value.where
    assert operator in caught.value.line()
    assert "express it by other operators" in caught.value.remedy
