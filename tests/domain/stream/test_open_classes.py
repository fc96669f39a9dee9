"""Classes that come, go and become one: their outputs never change."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

from edged.domain.judging.outputs import probabilities
from edged.domain.stream.open_classes import OpenClass, OpenClasses
from edged.domain.stream.schema import Schema
from edged.domain.training.message import Message
from edged.errors import RefusedError, RejectedSampleError


def test_a_label_with_a_new_name_gets_the_next_output() -> None:
    schema = Schema((), 2, "classify", OpenClasses(["ok"], 4))
    assert [schema.parse_label(name) for name in ("ok", "worn", 3, "ok", 2.5)] == [0, 1, 2, 0, 3]
    assert (schema.known_classes, schema.outputs) == (("ok", "worn", "3", "2.5"), 4)
    with pytest.raises(RejectedSampleError, match="all 4 outputs"):
        schema.parse_label("one too many")
    for odd in (True, ["ok"], None):
        with pytest.raises(RejectedSampleError, match="no name"):
            schema.parse_label(odd)
    with pytest.raises(RejectedSampleError, match="printable"):
        Schema((), 2, "classify", OpenClasses([], 4)).parse_label("a\nb")


def test_an_output_without_a_class_has_probability_0_and_no_name() -> None:
    classes = OpenClasses(["ok", "worn"], 4)
    shares = probabilities(classes.fold(np.array([[1, 1, 9, 9]], np.float32)))
    assert shares.tolist() == [[0.5, 0.5, 0, 0]]
    assert list(classes) == ["ok", "worn", "", ""]
    full = np.ones((3, 2), np.float32)
    assert OpenClasses(["ok", "worn"], 2).fold(full) is full


def test_an_earlier_network_knows_nothing_of_classes_that_came_after_it() -> None:
    classes = OpenClasses(["ok", "worn", "torn"], 4)
    shares = probabilities(classes.fold(np.array([[0, 0]], np.float32)))
    assert shares.tolist() == [[0.5, 0.5, 0, 0]]


def test_a_merged_class_counts_as_the_other_and_a_removed_one_for_nothing() -> None:
    classes = OpenClasses(["ok", "worn", "used", "torn"], 4)
    classes.retire("torn", "used")
    classes.retire("used", "worn")  # and what had become it
    classes.retire("ok", None)
    assert classes.known == ("worn",)
    assert classes.mapped(np.array([[0], [1], [2], [3]], np.float32)).tolist() == [[-1], [1], [1], [1]]
    assert classes.place("torn") == 1
    with pytest.raises(RejectedSampleError, match="was removed"):
        classes.place("ok")
    classes.retire("worn", None)
    assert classes.mapped(np.array([[3]], np.float32)).tolist() == [[-1]]


def test_the_probabilities_of_merged_classes_add_up() -> None:
    classes, raw = OpenClasses(["a", "b", "c"], 3), np.array([[0.5, -1, 2], [3, 1, 0]], np.float32)
    classes.retire("c", "a")
    before, after = probabilities(raw), probabilities(classes.fold(raw))
    expected = np.stack([before[:, 0] + before[:, 2], before[:, 1], np.zeros(2)], axis=1)
    np.testing.assert_allclose(after, expected, rtol=1e-5)


def test_a_class_that_was_removed_and_is_added_again_gets_another_output() -> None:
    classes = OpenClasses(["a", "b"], 3)
    classes.retire("a", None)
    assert classes.add("a") == 2
    assert (classes.place("a"), classes.known) == (2, ("b", "a"))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda c: c.add("a"), "already"), (lambda c: c.retire("z", None), "'z' is no class: a, b"),
        (lambda c: c.retire("a", "z"), "'z' is no class"), (lambda c: c.retire("a", "a"), "same class"),
        (lambda c: c.add(" "), "printable"), (lambda c: c.add("x" * 101), "printable"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(change: object, what: str) -> None:
    classes = OpenClasses(["a", "b"], 3)
    with pytest.raises(RefusedError, match=what):
        change(classes)  # type: ignore[operator]
    assert classes.known == ("a", "b")


def test_a_change_that_fails_leaves_nothing() -> None:
    classes = OpenClasses(["a", "b"], 3)

    def fail() -> None:
        with classes.changing():
            classes.add("c", "first")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert (classes.known, classes.changed_by("first")) == (("a", "b"), False)


def test_stored_classes_are_gone_on_from_once_with_those_that_are_new_behind_them() -> None:
    classes = OpenClasses(["a", "n"], 4)
    classes.load([OpenClass("a", -1, "t"), OpenClass("b", 1)])
    assert (classes.known, classes.changed_by("t"), classes.free) == (("b", "n"), True, 1)
    classes.load([OpenClass("x", 0)])
    assert classes.known == ("b", "n")
    with pytest.raises(RefusedError, match="3 classes are stored"):
        OpenClasses([], 2).load([OpenClass(name, place) for place, name in enumerate("abc")])


def test_another_process_gets_them_as_outputs_by_number() -> None:
    schema = Schema((), 2, "classify", OpenClasses(["ok"], 3))

    @dataclass(frozen=True)
    class Order(Message):
        schema: Schema

    hints = {"schema": Schema}
    Order.__annotations__ = hints
    read = Order.from_json(json.loads(json.dumps(Order(schema.fixed()).to_json()))).schema
    assert (read.classes, read.outputs, read.open, read.named_classes) == (("0", "1", "2"), 3, None, ())
    fixed = Schema((), 2, "classify", ("a", "b"))
    assert fixed.fixed() is fixed
