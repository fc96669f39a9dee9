"""What device and round agree on is never refused, and what they do not agree on costs nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.federated.participation import DeviceRules, MembershipRecord, disagreement, terms
from edged.domain.federated.privacy import PrivacyLedger, clipped, cost_of, epsilon_of, noised, norm
from edged.domain.federated.round_orders import KeptUpdate
from edged.domain.federated.settings import LastLayer, MaskSettings, RoundSettings, StatisticsSettings
from edged.fleet.rules.admission import bound

SIZE = 400
STATISTICS = StatisticsSettings((LastLayer("w", "b", 3, 8),))
norms = st.floats(1e-3, 1e3)
multipliers = st.sampled_from([0.0, 0.1, 0.5, 1.0, 4.0, 40.0])
KEPT = KeptUpdate("press-7", 3, "0" * 32, "1" * 64, 100, 1.0, 4.0, None, {}, 500)


@given(clip=norms, own_clip=st.none() | norms, noise=multipliers, most=multipliers, own=multipliers)
def test_an_update_by_agreed_terms_is_within_the_bound(
    clip: float, own_clip: float | None, noise: float, most: float, own: float
) -> None:
    asked, rules = RoundSettings(clip_norm=clip, noise=noise, own_noise=most), DeviceRules(own_clip, own)
    if disagreement(asked, rules):
        assert own > max(noise, most)
        return
    agreed = terms(asked, rules)
    assert agreed.noise >= max(noise, own)
    assert agreed.clip_norm <= min(clip, own_clip or clip)
    rng = np.random.default_rng(0)
    change = {"w": rng.normal(size=SIZE).astype(np.float32) * np.float32(1e4)}
    sent = noised(clipped(change, agreed.clip_norm), agreed.noise * agreed.clip_norm, rng)
    assert norm(sent) <= bound(asked, SIZE) * (1 + 1e-5)


@pytest.mark.parametrize(
    ("asked", "rules", "told"),
    [
        (RoundSettings(), DeviceRules(noise=4.0), "fleet.noise is 4 here, and the round takes at most 0"),
        (RoundSettings(noise=1.0, own_noise=3.0), DeviceRules(noise=4.0), "at most 3"),
        (RoundSettings(statistics=STATISTICS), DeviceRules(noise=1.0), "add no noise"),
        (RoundSettings(statistics=STATISTICS), DeviceRules(epsilon=1.0), "add no noise"),
        (RoundSettings(statistics=STATISTICS), DeviceRules(personal=("b",)), "keeps layers here"),
        (RoundSettings(), DeviceRules(masked=True), "fleet.masked"),
    ],
)
def test_a_disagreement_is_told_in_words(asked: RoundSettings, rules: DeviceRules, told: str) -> None:
    assert told in disagreement(asked, rules)
    masked = replace(asked, masks=MaskSettings(100))
    assert bool(disagreement(masked, rules)) is not rules.masked


def test_an_update_is_charged_once_and_one_under_masks_when_it_is_sent() -> None:
    plain = MembershipRecord().trained(1, KEPT)
    assert plain.trained(1, KEPT).ledger == plain.ledger == PrivacyLedger(cost_of(4.0), 1)
    hidden = replace(KEPT, masked=True)
    waiting = MembershipRecord().trained(1, hidden)
    assert waiting.ledger == PrivacyLedger()
    assert waiting.rounds == (KEPT.id,)
    assert waiting.masked(hidden).ledger == plain.ledger


@given(multiplier=st.floats(0.5, 100.0), epsilon=st.floats(0.1, 20.0))
def test_the_budget_is_never_passed_and_told_as_it_is(multiplier: float, epsilon: float) -> None:
    ledger, updates = PrivacyLedger(), 0
    while updates < 50 and not ledger.refusal(multiplier, epsilon, 1e-5):
        ledger, updates = ledger.charged(multiplier), updates + 1
    told = epsilon_of(ledger.rho, 1e-5)
    assert told <= epsilon
    # No more than the closed form of zero-concentrated privacy, and not far below it.
    assert told <= ledger.rho + 2 * math.sqrt(ledger.rho * math.log(1e5)) + 1e-9
    if updates < 50:
        assert epsilon_of(ledger.rho + cost_of(multiplier), 1e-5) > epsilon
