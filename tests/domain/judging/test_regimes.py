import json

import numpy as np
import pytest

from edged.domain.judging.regimes import KEPT, SHORTEST, Regimes, Signature, elsewhere
from edged.errors import CorruptError


def rows(seed: int, shift: float = 0.0, n: int = 200) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal([0, shift, 0], size=(n, 3)).astype(np.float32)


def labels(share: float, n: int = 200) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return (np.arange(n) < share * n).astype(np.float32).reshape(-1, 1)


def test_inputs_that_moved_lie_elsewhere() -> None:
    assert elsewhere(rows(0), rows(1, 1.5))
    assert not elsewhere(rows(0), rows(1))
    assert not elsewhere(rows(0, n=10), rows(1, 9.0)), "ten rows say nothing"


def test_chance_makes_inputs_lie_elsewhere_seldom() -> None:
    found = [elsewhere(rows(2 * i, n=60), rows(2 * i + 1)) for i in range(300)]
    assert np.mean(found) < 0.03


def test_a_signature_is_nearest_to_its_own_regime() -> None:
    then = Signature.of(rows(0), labels(0.3), 2)
    assert then.distance(then) == 0.0
    again, moved = Signature.of(rows(1), labels(0.3), 2), Signature.of(rows(2, 1.0), labels(0.3), 2)
    other_labels = Signature.of(rows(3), labels(0.9), 2)
    assert then.distance(again) < 0.2 < min(then.distance(moved), then.distance(other_labels))


def test_a_signature_of_values_and_of_a_constant_feature_has_a_distance() -> None:
    still = rows(0)
    still[:, 0] = 5.0
    signature = Signature.of(still, rows(1)[:, :1], 0)
    assert signature.shares == ()
    assert np.isfinite(signature.distance(Signature.of(rows(2), rows(3)[:, :1], 0)))


def test_a_drift_ends_a_regime_unless_it_has_only_begun() -> None:
    regimes = Regimes()
    assert regimes.close_regime(1000, "error", 3)
    assert not regimes.close_regime(1000 + SHORTEST - 1, "error", 4)
    assert regimes.close_regime(1000 + SHORTEST, "inputs", 5)
    assert [(r.after, r.until, r.version) for r in regimes.ended] == [(0, 1000, 3), (1000, 1200, 5)]
    assert regimes.begun == 1200


def test_only_a_drift_of_errors_says_that_answers_have_changed() -> None:
    regimes = Regimes()
    regimes.close_regime(1000, "inputs")
    regimes.close_regime(2000, "error")
    regimes.close_regime(3000, "inputs")
    assert [regimes.drifted_since(r) for r in regimes.ended] == [True, True, False]


def test_of_many_regimes_the_shortest_neighbours_become_one() -> None:
    regimes = Regimes()
    lengths = [1000, 900, 300, 250, *[1000] * (KEPT - 3)]
    for until in np.cumsum(lengths).tolist():
        regimes.close_regime(int(until), "error")
    assert len(regimes.ended) == KEPT
    assert [r.until - r.after for r in regimes.ended[:3]] == [1000, 900, 550]
    assert regimes.ended[0].after == 0


def test_regimes_survive_as_json() -> None:
    regimes = Regimes()
    regimes.close_regime(1000, "inputs", 3, Signature.of(rows(0), labels(0.5), 2))
    regimes.close_regime(3000, "error")
    back = Regimes.from_state(json.loads(json.dumps(regimes.state())))
    assert back == regimes
    with pytest.raises(CorruptError, match="no regimes"):
        Regimes.from_state({"ended": [{"after": 1}]})
