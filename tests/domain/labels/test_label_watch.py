"""Labels that contradict the model: told where somebody falsifies them, not where the world changes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.domain.judging.predictions import Predictions
from edged.domain.labels import label_watch
from edged.domain.labels.label_watch import Dispute, LabelWatch, Suspicion, explained

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLASSES = 4
BLOCK = 20


@dataclass
class Stream:
    """Four classes of two clusters each, a model that is right about them, and a watch over their labels."""

    rows: int = 3000
    wrong: float = 0.02  # of the model's answers
    seed: int = 0
    told: list[tuple[int, Dispute]] = field(default_factory=list)
    early: list[tuple[int, Suspicion]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = self.rng = np.random.default_rng(self.seed)
        self.truth, self.cluster = rng.integers(0, CLASSES, self.rows), rng.integers(0, 2, self.rows)
        centres = 5.0 * rng.normal(size=(CLASSES, 2, 6))
        noise = rng.normal(size=(self.rows, 6))
        self.x = (centres[self.truth, self.cluster] + noise).astype(np.float32)
        slips = rng.random(self.rows) < self.wrong
        self.answers = np.where(slips, rng.integers(0, CLASSES, self.rows), self.truth)
        self.said = self.truth.copy()
        self.sources = np.full(self.rows, "labels/a", object)
        self.keys = ["k"] * self.rows
        self.watch = LabelWatch(CLASSES, 1000)

    def follow(self, sure: float = 0.95) -> list[tuple[int, Dispute]]:
        """Answers and labels, block after block; what was told, and after how many rows."""
        for start in range(0, self.rows, BLOCK):
            part = slice(start, start + BLOCK)
            offsets, output = np.arange(start, start + BLOCK) + 1, np.zeros((BLOCK, CLASSES), np.float32)
            answers = self.answers[part, None].astype(np.float32)
            made = Predictions(1, offsets, answers, output, np.full(BLOCK, sure, np.float32))
            self.watch.remember(made, self.keys[part])
            self.watch.judge(offsets, self.said[part, None].astype(np.float32), self.sources[part].tolist())
            for suspicion in self.watch.pop_suspicions():
                if suspicion.early:
                    self.early.append((start + BLOCK, suspicion))
                    continue
                rows = np.array(suspicion.offsets) - 1
                if not explained(self.x[rows], suspicion.contradicts(suspicion.offsets)):
                    self.told += [(start + BLOCK, dispute) for dispute in self.watch.confirm(suspicion)]
        return self.told

    def falsify(self, share: float, begin: int = 1000) -> NDArray[np.bool_]:
        """Say 1 for so many of class 2; which rows."""
        chosen = (np.arange(self.rows) >= begin) & (self.truth == 2)
        wrong: NDArray[np.bool_] = chosen & (self.rng.random(self.rows) < share)
        self.said[wrong] = 1
        return wrong


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("wrong", [0.0, 0.02, 0.15])
def test_of_a_model_that_is_sometimes_wrong_nothing_is_told(seed: int, wrong: float) -> None:
    assert Stream(wrong=wrong, seed=seed).follow() == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.3, 0.55, 0.85])
def test_labels_of_a_class_that_are_falsified_are_told_within_500_and_set_aside(
    share: float, seed: int
) -> None:
    stream = Stream(seed=seed)
    wrong = stream.falsify(share)
    ((after, dispute),) = stream.follow()
    assert 1000 < after <= 1500
    assert dispute == Dispute("labels/a", predicted=2, said=1, whole=False, proven=True)
    aside = np.array(stream.watch.pop_aside()) - 1
    contradicts = (stream.answers == 2) & (stream.said == 1)
    assert contradicts[aside].all()
    assert set(np.flatnonzero(wrong & contradicts)) <= set(aside.tolist())


@pytest.mark.parametrize("seed", range(3))
def test_an_only_source_is_suspected_early_so_that_stored_labels_can_confirm_the_model(seed: int) -> None:
    stream = Stream(seed=seed)
    stream.falsify(0.3)
    ((after, _),) = stream.follow()
    begun, suspicion = next((at, early) for at, early in stream.early if at > 1000)
    assert begun < after
    assert (suspicion.predicted, suspicion.said) == (2, 1)
    rows = np.array(suspicion.offsets) - 1
    assert (stream.answers[rows] == 2).all(), "its labels are of this answer"


@pytest.mark.parametrize("seed", range(3))
def test_of_several_sources_none_is_suspected_early(seed: int) -> None:
    stream = Stream(seed=seed)
    stream.sources = np.array(["labels/a", "labels/b"], object)[stream.rng.integers(0, 2, stream.rows)]
    stream.falsify(0.3)
    assert stream.follow()
    assert [at for at, _ in stream.early if at > 1000] == []


@pytest.mark.parametrize("seed", range(3))
def test_where_one_source_lies_its_labels_alone_are_set_aside_all_of_them(seed: int) -> None:
    stream = Stream(seed=seed)
    stream.sources = np.array(["labels/a", "labels/b", "labels/c"], object)[stream.rng.integers(0, 3, 3000)]
    lies = (stream.sources == "labels/b") & (stream.truth == 2) & (np.arange(3000) >= 1000)
    stream.said[lies] = 1
    ((after, dispute),) = stream.follow()
    assert 1000 < after <= 1500
    assert (dispute.source, dispute.whole) == ("labels/b", True)
    aside = np.array(stream.watch.pop_aside()) - 1
    assert set(stream.sources[aside]) == {"labels/b"}
    assert set(np.flatnonzero(lies)) <= set(aside.tolist())


def test_a_class_that_means_something_else_from_now_on_is_no_falsification() -> None:
    stream = Stream()
    stream.said[1000:][stream.truth[1000:] == 2] = 1
    assert stream.follow() == []


def test_a_part_of_a_class_that_means_something_else_is_no_falsification() -> None:
    stream = Stream()
    moved = (np.arange(3000) >= 1000) & (stream.truth == 2) & (stream.cluster == 1)
    stream.said[moved] = 1
    assert stream.follow() == []


def test_a_machine_that_is_set_up_anew_beside_others_is_no_falsification() -> None:
    stream = Stream()
    machine = stream.rng.integers(0, 3, 3000)
    stream.keys = [f"m{i}" for i in machine]
    stream.said[(np.arange(3000) >= 1000) & (stream.truth == 2) & (machine == 1)] = 1
    assert stream.follow() == []


def test_a_source_that_somebody_trusts_again_may_differ_from_the_others() -> None:
    stream = Stream(rows=1500)
    stream.sources = np.array(["labels/a", "labels/b"], object)[stream.rng.integers(0, 2, stream.rows)]
    stream.said[(stream.sources == "labels/b") & (stream.truth == 2)] = 1
    ((_, dispute),) = stream.follow()
    assert (dispute.source, dispute.whole) == ("labels/b", True)
    assert stream.watch.release("labels/b")
    stream.told.clear()
    assert stream.follow() == []


def test_of_labels_without_a_source_nothing_is_told() -> None:
    stream = Stream()
    stream.falsify(0.5)
    stream.sources[:] = ""
    assert stream.follow() == []


def test_a_dispute_lasts_over_a_restart_until_it_is_released_and_is_not_told_again_at_once() -> None:
    stream = Stream()
    stream.falsify(0.5)
    assert len(stream.follow()) == 1
    again = Stream()
    again.falsify(0.5, begin=0)
    again.watch.load(json.loads(json.dumps(stream.watch.dump())))
    assert again.follow() == [], "it was told"
    assert not again.watch.release("labels/b")
    assert again.watch.release("labels/a")
    assert again.watch.disputes == ()
    assert again.follow() == [], "somebody has said that they are right"


def test_what_is_set_aside_is_judged_by_no_more() -> None:
    stream = Stream()
    stream.watch.load([["labels/a", 2, 1, True]])
    offsets = np.array([1, 2])
    made = Predictions(
        1,
        offsets,
        np.array([[2], [2]], np.float32),
        np.zeros((2, 4), np.float32),
        np.array([0.9, 0.9], np.float32),
    )
    stream.watch.remember(made, ["k", "k"])
    sources = ["labels/a", "labels/b"]
    assert stream.watch.judge(offsets, np.array([[1], [2]], np.float32), sources).tolist() == [True, False]
    stream.watch.forget(offsets)
    assert stream.watch.judge(offsets, np.array([[1], [2]], np.float32), sources).tolist() == [True, False]


def test_of_a_source_without_others_only_what_contradicts_a_sure_answer_is_set_aside() -> None:
    stream = Stream()
    stream.watch.load([["labels/a", 2, 1, False, True]])
    offsets = np.array([1, 2, 3, 4])
    answers, sure = np.array([[2], [2], [3], [2]], np.float32), np.array([0.9, 0.4, 0.9, 0.9], np.float32)
    stream.watch.remember(Predictions(1, offsets, answers, np.zeros((4, 4), np.float32), sure), ["k"] * 4)
    said = np.array([[1], [1], [1], [3]], np.float32)
    assert stream.watch.judge(offsets, said, ["labels/a"] * 4).tolist() == [True, False, False, False]


@pytest.mark.parametrize(("begin", "wrong"), [(100, 0.0), (1000, 0.4)])
def test_of_a_source_without_others_nothing_is_set_aside_by_a_model_that_is_not_proven(
    begin: int, wrong: float
) -> None:
    stream = Stream()
    muddled = (stream.truth == 2) & (stream.rng.random(stream.rows) < wrong)
    stream.said[muddled] = 3  # the model says 2: it does not know this class well
    stream.falsify(0.5, begin=begin)
    disputes = [dispute for _, dispute in stream.follow()]
    assert Dispute("labels/a", predicted=2, said=1, whole=False) in disputes
    assert not any(dispute.proven for dispute in disputes)
    assert stream.watch.pop_aside() == []


def test_a_model_that_has_seen_a_single_class_has_proven_nothing() -> None:
    stream = Stream(rows=600, wrong=0.0)
    stream.truth[:] = stream.answers[:] = stream.said[:] = 2
    stream.falsify(0.5, begin=400)
    disputes = [dispute for _, dispute in stream.follow()]
    assert disputes == [Dispute("labels/a", predicted=2, said=1, whole=False)]
    assert stream.watch.pop_aside() == []


def test_a_dispute_that_an_earlier_version_has_stored_sets_nothing_more_aside() -> None:
    stream = Stream()
    stream.watch.load([["labels/a", 2, 1, False]])
    assert stream.watch.disputes == (Dispute("labels/a", 2, 1, whole=False, proven=False),)


def test_keys_that_are_made_up_do_not_fill_the_memory() -> None:
    stream = Stream(rows=6000)
    stream.keys = [f"k{i}" for i in range(6000)]
    stream.follow()
    assert len(stream.watch._agreed) <= label_watch.MOST_KEYS  # noqa: SLF001  what is bounded is inside
