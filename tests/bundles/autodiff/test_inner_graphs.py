"""What only the body of an If, a Loop or a Scan reads is not forgotten: the node is refused."""

from __future__ import annotations

import numpy as np

from tests.bundles.autodiff.cases import Case, of
from tests.bundles.autodiff.oracle import assert_refused

CASES: list[Case] = []  # None is judged: there is no gradient.
CHOICE = """y = If(c) <
  then_branch = t () => (float[3] p) { p = Mul(x, w) },
  else_branch = e () => (float[3] q) { q = Add(x, w) }
>"""


def test_a_parameter_that_a_node_reads_inside_and_another_outside() -> None:
    tensors = {"x": of("b", 3), "w": of(3), "c": np.array(True)}
    assert_refused(Case(f"{CHOICE} z = Mul(y, w)", tensors, ends=("z",)), "its condition is computed")
