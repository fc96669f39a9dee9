"""Rounds of statistics: one round gives the layer of central training, and devices come and go by sums."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.domain.federated.head_statistics import HeadStatistics, NetworkStatistics
from edged.domain.federated.messages import Receipts, UpdateHeader
from edged.errors import ConfigError
from edged.fleet.coordinator.control import exclude
from edged.fleet.coordinator.journal import read_lineage
from edged.mqtt.update_encoding import pack_sums
from tests.fleet.coordinator.channel import TOPICS, Fleet
from tests.fleet.senders import base_weights

if TYPE_CHECKING:
    Rows = dict[str, tuple[np.ndarray, np.ndarray]]

WIDTH, CLASSES = 8, 12  # as the layer of `base_weights`
SECTIONS: dict[str, Any] = {
    "statistics": {"weight": "w", "bias": "b"},
    "choose": {"everyone": True},
    "gate": {"evaluate": False},
}


def fleet(folder: Path, devices: int, **sections: Any) -> Fleet:
    pace = {"kind": "statistics", "devices": devices, "deadline": "100s", "window": 0, "quorum": 0.5}
    return Fleet(folder, **{**SECTIONS, "round": pace, **sections})


def rows_of(names: list[str], seed: int = 0) -> Rows:
    """From one row a device to a few hundred, and classes that differ."""
    rng, found = np.random.default_rng(seed), {}
    for name in names:
        count, liked = int(rng.geometric(0.02)), rng.integers(0, CLASSES, 3)
        classes = rng.choice(liked, count)
        inputs = rng.normal(size=(count, WIDTH)) + classes[:, None] * np.linspace(-0.5, 1, WIDTH)
        found[name] = inputs.astype(np.float32), classes
    return found


def sums(rows: Rows, name: str) -> HeadStatistics:
    return HeadStatistics.of(*rows[name], CLASSES)


def send(made: Fleet, name: str, found: HeadStatistics | NetworkStatistics, **changed: Any) -> None:
    told = made.told
    assert told is not None
    blob = pack_sums(found.vector())
    line = UpdateHeader(
        name, told.round, told.id, told.base.hash, int(found.rows), None, 0.0, len(blob), "0" * 64
    )
    for topic, payload in replace(line, **changed).messages(TOPICS, blob):
        made.line.say(topic, payload)


def answers(made: Fleet) -> dict[str, str]:
    """What devices were told last, by name."""
    found: dict[str, str] = {}
    for topic, payload in made.line.sent:
        if "/ack/" in topic:
            receipts = Receipts.read(payload)
            found |= dict.fromkeys(receipts.accepted, "accepted") | dict(receipts.refused)
    return found


def standing(made: Fleet) -> dict[str, np.ndarray]:
    return dict(made.coordinator.journal.weights(made.coordinator.course.standing.hash))


def central(rows: Rows, names: list[str]) -> dict[str, np.ndarray]:
    """The layer that all rows of these devices together give, in one piece."""
    inputs, classes = (np.concatenate([rows[name][i] for name in names]) for i in (0, 1))
    weight, bias = HeadStatistics.of(inputs, classes, CLASSES).solved(10.0, 10.0)
    return {"w": weight, "b": bias}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, value in expected.items():
        assert np.abs(found[name] - value).max() <= 1e-6, name


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("kind", ["training", "statistics"])
def test_a_budget_counts_the_bytes_that_devices_send(tmp_path: Path, kind: str, masks: bool) -> None:
    numbers = WIDTH * CLASSES + CLASSES
    size = 8 * (numbers + 1) if masks else numbers + 4 * (CLASSES + 1)
    if kind == "statistics":
        size = len(sums(rows_of(["a"]), "a").vector().tobytes())
    pace = {"kind": kind, "devices": 3, "deadline": "100s", "window": 0, "over": 1, "quorum": 1}
    made = fleet(
        tmp_path, 3, round=pace, choose={"patience": "1s"}, rollout={"fleet_bytes": "1MiB"},
        masks={"enabled": masks}, gate={"stages": [1.0]},
    )  # fmt: skip
    base = made.coordinator.course.standing
    for name in ("a", "b", "c"):
        made.state(name, model=base.hash)
    made.turns()
    made.wait(11)
    assert made.coordinator.course.traffic == 3 * size


@pytest.mark.parametrize("key", ["penalty", "sharpness"])
def test_the_layer_is_solved_for_as_configured(tmp_path: Path, key: str) -> None:
    rows = rows_of(["a", "b"], 1)
    found = []
    for value in (10.0, 20.0):
        made = fleet(tmp_path / str(value), 2, statistics={**SECTIONS["statistics"], key: value})
        made.turns()
        for name in rows:
            send(made, name, sums(rows, name))
        made.turns()
        inputs, classes = (np.concatenate([rows[name][i] for name in rows]) for i in (0, 1))
        usual = {"penalty": 10.0, "sharpness": 10.0} | {key: value}
        weight, bias = HeadStatistics.of(inputs, classes, CLASSES).solved(**usual)
        assert_same(standing(made), {"w": weight, "b": bias})
        found.append(standing(made)["w"])
    assert np.abs(found[0] - found[1]).max() > 0.01


@pytest.mark.parametrize("count", [1, 2, 10, 100, 1000])
def test_one_round_gives_the_model_of_central_training(tmp_path: Path, count: int) -> None:
    names = [f"d{n}" for n in range(count)]
    rows = rows_of(names, count)
    rows["d0"] = rows_of([f"d{n}" for n in range(3)], 7)["d2"]
    orders, models = random.Random(count), []
    there = orders.sample(names, max(1, round(0.7 * count)))  # 30 % say nothing
    for attempt in range(2):
        made = fleet(tmp_path / str(attempt), count)
        made.turns()
        orders.shuffle(there)
        for number, name in enumerate(there):
            send(made, name, sums(rows, name))
            if number % 100 == 99:
                made.turns(1)
        made.turns()
        made.wait(101)
        assert made.coordinator.course.version == 1
        assert_same(standing(made), central(rows, there))
        models.append(made.coordinator.course.standing.hash)
        made.coordinator.close()
    assert models[0] == models[1]  # to the last bit, in whatever order


def test_a_device_that_is_silent_counts_on_until_it_is_excluded(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    rows, made = rows_of(names, 1), fleet(tmp_path, 4)
    made.turns()
    for name in names:
        send(made, name, sums(rows, name))
    made.turns(4)
    assert made.coordinator.course.number == 2
    rows |= rows_of(["b", "c"], 2)
    for name in "bc":
        send(made, name, sums(rows, name))
    made.turns()
    made.restart()
    made.wait(101)
    assert_same(standing(made), central(rows, names))
    exclude(made.config.dir, "d")
    for name in "bc":
        send(made, name, sums(rows, name))
    made.turns()
    made.wait(101)
    assert_same(standing(made), central(rows, ["a", "b", "c"]))
    exclude(made.config.dir, "d", include=True)
    for name in "bc":
        send(made, name, sums(rows, name))
    made.turns()
    made.wait(101)
    assert_same(standing(made), central(rows, names))


def test_what_no_samples_can_give_is_refused(tmp_path: Path) -> None:
    rows, made = rows_of(["a"], 1), fleet(tmp_path, 9)
    made.turns()
    good = sums(rows, "a")
    send(made, "other-count", good, samples=int(good.rows) + 1)
    send(made, "no-samples", good, samples=0)
    send(made, "infinite", replace(good, gram=np.where(good.gram == good.gram[1, 2], np.inf, good.gram)))
    send(
        made, "negative", replace(good, gram=np.where(np.eye(9, k=0) * (np.arange(9) == 4), -1.0, good.gram))
    )
    send(made, "classes", replace(good, by_target=good.by_target * 2))
    send(
        made,
        "correlated",
        replace(good, gram=good.gram + 1e9 * (1 - np.eye(9)) * (good.gram != good.gram[0])),
    )
    narrow = HeadStatistics.of(rows["a"][0][:, :5], rows["a"][1], CLASSES)
    send(made, "narrow", narrow)
    send(made, "good", good)
    made.turns()
    assert answers(made) == {
        "other-count": "samples", "no-samples": "samples", "infinite": "not_finite", "negative": "sums",
        "classes": "sums", "correlated": "sums", "narrow": "damaged", "good": "accepted",
    }  # fmt: skip


def test_a_device_whose_inputs_are_far_larger_is_left_out_and_named(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    rows, made = rows_of(names, 1), fleet(tmp_path, 5)
    made.turns()
    for name in names:
        send(made, name, sums(rows, name))
    rows["liar"] = (rows["a"][0] * 1000, rows["a"][1])
    send(made, "liar", sums(rows, "liar"))
    made.turns(4)
    assert_same(standing(made), central(rows, names))
    assert read_lineage(made.config.dir)[-1].left_out == ("liar",)


def test_a_device_counts_for_so_many_samples_at_most(tmp_path: Path) -> None:
    rows = rows_of(["a", "b"], 1)
    rows["b"] = tuple(np.concatenate([part] * 20)[:400] for part in rows["b"])  # type: ignore[assignment]
    made = fleet(tmp_path, 2, admit={"max_samples": 100})
    made.turns()
    for name in "ab":
        send(made, name, sums(rows, name))
    made.turns(4)
    quarter = HeadStatistics(*(part / 4 for part in (sums(rows, "b").gram, sums(rows, "b").by_target)))
    assert len(rows["a"][0]) <= 100
    weight, _ = (sums(rows, "a") + quarter).solved(10.0, 10.0)
    assert np.abs(standing(made)["w"] - weight).max() <= 1e-6


def test_a_round_whose_kind_was_changed_meanwhile_ends(tmp_path: Path) -> None:
    made = fleet(tmp_path, 2)
    made.turns()
    send(made, "a", sums(rows_of(["a"]), "a"))
    made.turns()
    made.configure(
        round={"devices": 2, "deadline": "100s", "window": 0},
        **{name: value for name, value in SECTIONS.items() if name != "statistics"},
    )
    made.restart()
    made.turns(4)
    assert "asks for other rounds" in read_lineage(made.config.dir)[-1].reason
    assert made.told is not None
    assert made.told.config.statistics is None
    for name in "ab":
        made.update(name)
    made.turns(2)
    assert made.coordinator.course.version == 1


def test_a_class_that_nobody_has_and_one_class_alone(tmp_path: Path) -> None:
    made = fleet(tmp_path, 1)
    made.turns()
    inputs, _ = rows_of(["a"])["a"]
    send(made, "a", HeadStatistics.of(inputs, np.zeros(len(inputs), np.int64), CLASSES))
    made.turns(3)
    entry = read_lineage(made.config.dir)[-1]
    assert not entry.accepted
    assert "fewer than two classes" in entry.reason


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"train": {"noise": 1.0}}, "train.noise"),
        ({"train": {"personal": ["w"]}}, "train.personal"),
        ({"reduce": {"how": "median"}}, "reduce.how"),
        ({"statistics": {"weight": "w"}}, "both weight and bias"),
        ({"statistics": {"weight": "v", "bias": "b"}}, "no layer v/b"),
        ({"statistics": {}}, "no layer of a weight and a bias"),
    ],
)
def test_what_cannot_work_is_an_error_at_once(tmp_path: Path, sections: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        fleet(tmp_path, 2, **sections)


def test_the_last_layer_is_found_by_its_name(tmp_path: Path) -> None:
    from edged.fleet.config import StatisticsSection
    from edged.fleet.rules.statistics import SolvedHead

    shapes = {
        f"layer{n}.{kind}": shape for n in (2, 9, 10) for kind, shape in (("weight", (4, 6)), ("bias", (4,)))
    }
    (found,) = SolvedHead.of(shapes | {"scale": (7,)}, StatisticsSection()).settings.layers
    assert found.weight == "layer10.weight"
    assert base_weights()["w"].shape == (CLASSES, WIDTH)
