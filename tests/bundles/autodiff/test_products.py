"""Rules of matrix products."""

from __future__ import annotations

import pytest

from tests.bundles.autodiff.cases import Case, of
from tests.bundles.autodiff.oracle import assert_refused, judge

SHAPES = [
    (("b", 3), (3, 4)),
    (("b", 2, 3), (3, 4)),
    (("b", 2, 5, 3), (3, 4)),
    (("b", 2, 2, 3), (2, 3, 4)),
    (("b", 2, 3), (1, 3, 4)),
    (("b", 1, 2, 3), (2, 3, 4)),
    (("b", 2, 3), ("b", 3, 4)),
    (("b", 2, 3), (5, 1, 3, 4)),
    ((2, 3), ("b", 3, 4)),
    ((1, 2, 3), ("b", 3, 4)),
    (("b", 5, 2, 3), (5, 3, 4)),
    ((3, 4), (4, "b")),
    ((2, 3, 4), (4, "b")),
    (("b", 1, 2, 3), (1, 5, 3, 4)),
    # Vectors on either side, or both.
    (("b", 3), (3,)),
    (("b", 2, 3), (3,)),
    ((3,), (3, "b")),
    ((3,), ("b", 3, 4)),
    ((3,), (2, "b", 3, 4)),
    ((3,), (3,)),
    (("b",), ("b",)),
    (("b",), ("b", 3)),
    ((3, "b"), ("b",)),
    ((3, "b"), ("b", 4)),
]

CASES = [
    *(Case("y = MatMul(a, c)", {"a": of(*a), "c": of(*c), "x": of("b", 1)}) for a, c in SHAPES),
    # The same tensor on both sides.
    Case("y = MatMul(w, w)", {"w": of(3, 3), "x": of("b", 1)}),
    Case("t = Transpose<perm = [1, 0]>(x) y = MatMul(t, x)", {"x": of("b", 3)}),
    Case("t = Transpose<perm = [1, 0]>(x) y = MatMul(x, t)", {"x": of("b", 3)}),
    Case("t = Transpose<perm = [0, 2, 1]>(x) y = MatMul(x, t)", {"x": of("b", 2, 3)}),
    Case("t = Transpose<perm = [1, 0]>(x) y = MatMul(w, t)", {"x": of("b", 3), "w": of(2, 4, 3)}),
    *(
        Case(
            f"y = Gemm<transA = {ta}, transB = {tb}, alpha = {alpha}, beta = {beta}>(a, w, c)",
            {"a": of(3, "b") if ta else of("b", 3), "w": of(4, 3) if tb else of(3, 4), "c": c},
        )
        for ta in (0, 1)
        for tb in (0, 1)
        for alpha, beta, c in ((1.0, 1.0, of(4)), (0.5, -2.0, of(1, 4)))
    ),
    *(
        Case("y = Gemm<beta = 0.5>(x, w, c)", {"x": of("b", 3), "w": of(3, 4), "c": c})
        for c in (of(), of(1), of(1, 1), of("b", 4), of("b", 1))
    ),
    Case("y = Gemm(x, w)", {"x": of("b", 3), "w": of(3, 4)}),
    Case("y = Gemm<beta = 0.0>(x, w, c)", {"x": of("b", 3), "w": of(3, 4), "c": of(4)}),
    Case("y = Gemm<transB = 1>(x, x)", {"x": of("b", 3)}),
    Case("y = Gemm(x, w, v)", {"x": of("b", 3), "w": of(3, 4), "v": of(4)}, fixed=("x", "w")),
    Case("y = Gemm(x, w, v)", {"x": of("b", 3), "w": of(3, 4), "v": of(4)}, fixed=("x", "v")),
    *(
        Case(f'y = Einsum<equation = "{equation}">(x, w)', {"x": of(*a), "w": of(*b)})
        for equation, a, b in (
            ("bi,ij->bj", ("b", 3), (3, 4)),
            ("bi,ij->jb", ("b", 3), (3, 4)),
            (" bi , ij -> bj ", ("b", 3), (3, 4)),
            ("bti,ij->btj", ("b", 2, 3), (3, 4)),
            ("bhqd,bhkd->bhqk", ("b", 2, 3, 4), ("b", 2, 5, 4)),
            ("bi,bi->b", ("b", 3), ("b", 3)),
            ("bi,bi->", ("b", 3), ("b", 3)),
            ("bi,j->bij", ("b", 3), (4,)),
            ("bi,j->b", ("b", 3), (4,)),
            ("bij,j->bi", ("b", 2, 3), (3,)),
            ("bij,jk->bi", ("b", 2, 3), (3, 4)),
        )
    ),
    *(
        Case(f'y = Einsum<equation = "{equation}">(x)', {"x": of("b", 2, 3)})
        for equation in ("bij->bji", "bij->b", "bij->", "bij->ij", "bij->jib")
    ),
    Case('y = Einsum<equation = "bi,ij,jk->bk">(x, w, v)', {"x": of("b", 3), "w": of(3, 2), "v": of(2, 4)}),
    Case('y = Einsum<equation = "bi,bi->b">(x, x)', {"x": of("b", 3)}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case) -> None:
    judge(case)


REFUSED = [
    (Case('y = Einsum<equation = "...i,ij->...j">(x, w)', {"x": of("b", 3), "w": of(3, 4)}), "equation"),
    (Case('y = Einsum<equation = "bi,ij">(x, w)', {"x": of("b", 3), "w": of(3, 4)}), "equation"),
    (Case('y = Einsum<equation = "bii->bi">(x)', {"x": of("b", 3, 3)}), "equation"),
    # Sizes of 1 stand for another along a letter.
    (Case('y = Einsum<equation = "bi,ij->bj">(x, w)', {"x": of("b", 1), "w": of(3, 4)}), "size of 1"),
]


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=str)
def test_refused(case: Case, reason: str) -> None:
    assert_refused(case, reason)
