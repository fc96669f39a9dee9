"""Sizes that a sample decides are found wherever they hide; those that shapes decide are fine."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from edged.engines.onnx.computed_sizes import computed_size

HEAD = '<ir_version: 8, opset_import: ["" : 17, "own" : 1]>\n'
FINE = {
    "constant": "g (float[n, 3] x) => (float[m] y) <int64[1] k = {9}> { y = Expand(x, k) }",
    "shape": "g (float[n, 3] x) => (float[m] y) { s = Shape(x)  t = Mul(s, s)  y = ConstantOfShape(t) }",
    "value": "g (float[n, 3] x) => (float[m] y) <int64[1] k = {9}> { z = Relu(x)  y = Tile(z, k) }",
}
FOUND = {
    "Expand": "g (float[n, 3] x) => (float[m] y) { k = Cast<to = 7>(x)  y = Expand(x, k) }",
    "Range": "g (float[n, 3] x) => (float[m] y) <float a = {0}> { k = ReduceMax(x)  y = Range(a, k, k) }",
    "Tile": """g (float[n, 3] x, bool c) => (float[m] y) {
        y = If (c) <then_branch = a () => (float[m] t) { k = Cast<to = 7>(x)  t = Tile(x, k) },
                    else_branch = b () => (float[m] e) { e = Identity(x) }> }""",
    "ConstantOfShape": """g (float[n, 3] x, bool c) => (float[m] y) <int64[1] q = {1}> {
        k = If (c) <then_branch = a () => (int64[1] t) { t = Cast<to = 7>(x) },
                    else_branch = b () => (int64[1] e) { e = Identity(q) }>
        y = ConstantOfShape(k) }""",
    "Pad": """g (float[n, 3] x) => (float[m] y) { y = own.f(x) }
        <domain: "own", opset_import: ["" : 17]> f (a) => (b) { k = Cast<to = 7>(a)  b = Pad(a, k) }""",
}


def file(folder: Path, text: str) -> Path:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), str(path))
    return path


@pytest.mark.parametrize("text", FINE.values(), ids=FINE)
def test_sizes_of_shapes_and_constants_are_fine(tmp_path: Path, text: str) -> None:
    assert computed_size(file(tmp_path, text)) is None


@pytest.mark.parametrize("operator", FOUND)
def test_sizes_of_values_are_found(tmp_path: Path, operator: str) -> None:
    assert computed_size(file(tmp_path, FOUND[operator])) == operator
