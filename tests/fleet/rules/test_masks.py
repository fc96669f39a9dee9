"""Sums under masks: right with dropouts in every step, and nothing but the sum is known."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.device.fleet_member.masked_rounds import RoundMasks
from edged.domain.federated.mask_messages import JOIN, ROSTER, SHARES, UNMASK, UnmaskRequest, packed
from edged.domain.federated.masking import (
    LARGEST,
    PRIME,
    SHARE_BYTES,
    SecretJoiner,
    flat,
    fraction_bits,
    from_ring,
    neighbours,
    places,
    split_secret,
    threshold,
    to_ring,
)
from edged.errors import CorruptError, RefusedError, RejectedUpdateError
from edged.fleet.rules.masks import Masks

if TYPE_CHECKING:
    Vectors = dict[str, np.ndarray]

TOKEN = "0" * 32
names_of = [f"d{n}" for n in range(200)]


# ---- Shamir ------------------------------------------------------------------------------------


def test_the_modulus_is_prime() -> None:
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):  # Miller and Rabin
        odd, twos = PRIME - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        powers = [pow(base, odd << n, PRIME) for n in range(twos)]
        assert powers[0] == 1 or PRIME - 1 in powers


@given(st.binary(min_size=32, max_size=32), st.integers(1, 40), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_any_shares_that_are_enough_give_the_secret(secret: bytes, count: int, order: random.Random) -> None:
    holders = names_of[:count]
    shares, at = split_secret(secret, holders), places(holders)
    chosen = order.sample(holders, order.randint(threshold(count), count))
    assert SecretJoiner().join({at[n]: shares[n] for n in chosen}, count) == secret
    few = order.sample(holders, threshold(count) - 1)
    with pytest.raises(CorruptError, match="needed"):
        SecretJoiner().join({at[n]: shares[n] for n in few}, count)


def test_shares_that_are_too_few_fit_any_secret() -> None:
    """With one more share, drawn at will, any other secret comes out: they say nothing."""
    shares, at = split_secret(bytes(32), names_of[:5]), places(names_of[:5])
    known = {at[n]: int.from_bytes(shares[n], "big") for n in names_of[:2]}
    wanted, x = 12345, at["d2"]
    # The polynomial through (0, wanted) and the two known points, at x.
    points = {0: wanted} | known
    value = 0
    for a, y in points.items():
        term = y
        for b in points:
            if b != a:
                term = term * (x - b) * pow(a - b, -1, PRIME) % PRIME
        value = (value + term) % PRIME
    forged = {a: y.to_bytes(SHARE_BYTES, "big") for a, y in (known | {x: value}).items()}
    assert int.from_bytes(SecretJoiner().join(forged, 5), "big") == wanted


# ---- numbers and neighbours --------------------------------------------------------------------


@given(
    st.lists(st.lists(st.floats(-1e4, 1e4), min_size=3, max_size=3), min_size=1, max_size=40),
)
@settings(max_examples=50, deadline=None)
def test_sums_of_whole_numbers_are_the_sums(rows: list[list[float]]) -> None:
    vectors = [np.array(row) for row in rows]
    total = np.zeros(3, np.uint64)
    for vector in vectors:
        total = total + to_ring(vector, len(vectors))
    count = len(vectors)
    most = count * 2.0 ** -(fraction_bits(count) + 1) + 1e-9
    assert np.abs(from_ring(total, count) - np.sum(vectors, axis=0)).max() <= most


@pytest.mark.parametrize("count", [3, 4, 5, 1000, 1024, 1025])
def test_the_largest_numbers_of_all_devices_fit(count: int) -> None:
    for sign in (1, -1):
        one = to_ring(np.array([sign * (LARGEST - 1.0)]), count)
        total = np.multiply(one, np.uint64(count))
        assert from_ring(total, count).tolist() == [sign * count * (LARGEST - 1.0)]


@pytest.mark.parametrize("number", [2.0**20, np.nan, np.inf, -1e10])
def test_what_does_not_fit_is_refused(number: float) -> None:
    with pytest.raises(RefusedError, match="does not fit"):
        to_ring(np.array([1.0, number]), 10)


@pytest.mark.parametrize("count", [2, 3, 20, 129, 130, 131, 200])
def test_neighbours_are_mutual(count: int) -> None:
    found = neighbours(names_of[:count], TOKEN)
    for name, others in found.items():
        assert name not in others
        assert len(set(others)) == len(others) == min(count - 1, 128)
        assert all(name in found[other] for other in others)


def test_tensors_lie_one_after_the_other() -> None:
    values = {"b": np.ones((2,), np.float32)}
    assert flat(values, {"w": (1, 2), "b": (2,), "a": ()}).tolist() == [0.0, 1.0, 1.0, 0.0, 0.0]


# ---- a whole round -----------------------------------------------------------------------------


class Round:
    """Devices and a coordinator that speak to each other directly."""

    def __init__(self, names: Collection[str], most: int = 128) -> None:
        self.masks = Masks(TOKEN)
        self.devices = {name: RoundMasks(name, TOKEN) for name in names}
        for name, device in self.devices.items():
            self.masks.receive(name, JOIN, device.join())
        self.masks.make_roster(most)

    def share(self, names: Collection[str]) -> None:
        for name in names:
            self.masks.receive(name, SHARES, self.devices[name].share(self.masks.message_for(name, ROSTER)))
        self.masks.choose_sharers()
        for name in self.masks.sharers or ():
            self.devices[name].hold(self.masks.message_for(name, SHARES))

    def rows(self, vectors: Vectors, names: Collection[str]) -> Vectors:
        return {name: self.devices[name].masked(vectors[name]) for name in sorted(names)}

    def unmask(self, survivors: Collection[str], answering: Collection[str]) -> None:
        self.masks.close(survivors)
        for name in answering:
            self.masks.receive(name, UNMASK, self.devices[name].unmask(self.masks.message_for(name, UNMASK)))


def drawn(names: Collection[str], size: int = 50, seed: int = 0) -> Vectors:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=size) for name in names}


@given(st.integers(3, 24), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_the_sum_is_right_whoever_falls_silent_when(count: int, order: random.Random) -> None:
    names = names_of[:count]
    vectors, needed = drawn(names), threshold(count)
    made = Round(names)
    sharing = order.sample(names, order.randint(needed, count))
    made.share(sharing)
    surviving = order.sample(sharing, order.randint(needed, len(sharing)))
    sent = made.rows(vectors, surviving)
    answering = order.sample(surviving, order.randint(needed, len(surviving)))
    made.unmask(surviving, answering)
    assert made.masks.complete
    found = made.masks.unmasked(sent.values(), 50)
    assert np.abs(found - np.sum([vectors[n] for n in surviving], axis=0)).max() <= 1e-7


def test_with_many_devices_each_has_some_neighbours_and_a_third_may_fall_silent() -> None:
    names, order = names_of[:100], random.Random(1)
    vectors = drawn(names, 5)
    made = Round(names, 32)
    made.share(names)
    surviving = order.sample(names, 70)
    sent = made.rows(vectors, surviving)
    made.unmask(surviving, surviving)
    assert made.masks.complete
    found = made.masks.unmasked(sent.values(), 5)
    assert np.abs(found - np.sum([vectors[n] for n in surviving], axis=0)).max() <= 1e-6


def test_with_too_few_it_is_known_at_once_and_nothing_is_revealed() -> None:
    made = Round(names_of[:10])
    made.share(names_of[:10])
    assert made.masks.hopeless_with(names_of[:5])
    assert not made.masks.hopeless_with(names_of[:6])
    made.masks.close(names_of[:5])
    assert not made.masks.complete
    with pytest.raises(RefusedError, match="too few"):
        made.devices["d0"].unmask(made.masks.message_for("d0", UNMASK))


def test_a_vector_under_masks_looks_like_noise() -> None:
    """The same vector in two rounds, and two vectors in one: nothing of them is in what is sent."""
    zeros = dict.fromkeys(names_of[:4], np.zeros(4000))
    sent = []
    for _ in range(2):
        made = Round(names_of[:4])
        made.share(names_of[:4])
        sent.append(made.rows(zeros, names_of[:4])["d0"])
    bits = np.unpackbits(sent[0].view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.01
    assert (sent[0] != sent[1]).mean() > 0.999


def test_a_device_gives_only_one_secret_of_each_and_answers_once() -> None:
    made = Round(names_of[:5])
    made.share(names_of[:5])
    made.masks.close(names_of[:4])
    device, request = made.devices["d0"], made.masks.message_for("d0", UNMASK)
    both = UnmaskRequest(TOKEN, ("d0", "d1", "d2", "d3", "d4"), ("d4",))
    with pytest.raises(RefusedError, match="must not have"):
        device.unmask(both.payload())
    assert device.unmask(request) == device.unmask(request)
    other = UnmaskRequest(TOKEN, ("d0", "d1", "d2", "d4"), ("d3",))
    with pytest.raises(RefusedError, match="other shares than before"):
        device.unmask(other.payload())


@pytest.mark.parametrize("lie", ["false", "swapped"])
def test_false_shares_are_noticed(lie: str) -> None:
    made = Round(names_of[:5])
    made.share(names_of[:5])
    sent = made.rows(drawn(names_of[:5]), names_of[:4])
    made.unmask(names_of[:4], names_of[:4])
    for name in names_of[:4]:  # d4 is silent: shares of its key
        held = made.masks.answers[name]
        held["d4"] = bytes([0, *held["d4"][1:32], held["d4"][32] ^ 1]) if lie == "false" else held["d0"]
    with pytest.raises(CorruptError, match="shares"):
        made.masks.unmasked(sent.values(), 50)


def test_what_is_out_of_turn_is_refused() -> None:
    made = Round(names_of[:4])
    stranger = RoundMasks("d9", TOKEN)
    with pytest.raises(RejectedUpdateError, match="when the roster was made"):
        made.masks.receive("d9", JOIN, stranger.join())
    with pytest.raises(RejectedUpdateError, match="others than its"):
        made.masks.receive("d9", SHARES, packed(TOKEN, {"d0": bytes(82)}))
    with pytest.raises(RejectedUpdateError, match="not asked"):
        made.masks.receive("d0", UNMASK, packed(TOKEN, {"d0": bytes(33)}))
    with pytest.raises(RejectedUpdateError, match="another round"):
        made.masks.receive("d0", JOIN, RoundMasks("d0", "1" * 32).join())
    assert made.masks.receive("d0", JOIN, made.devices["d0"].join()) == (False, ROSTER)
    with pytest.raises(RejectedUpdateError, match="neighbours"):
        stranger.share(packed(TOKEN, {"d0": bytes(64)}))
    changed = {n: bytes(82) for n in made.masks.ring or {} if n != "d0"}
    made.devices["d0"].share(made.masks.message_for("d0", ROSTER))
    with pytest.raises(RejectedUpdateError, match="cannot be read"):
        made.devices["d0"].hold(packed(TOKEN, changed))
