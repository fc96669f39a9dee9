"""Seeded numbers: the published generator, uniform, and the same again."""

import numpy as np

from edged.domain.seeded_rng import SeededRng


def test_the_numbers_are_those_of_the_published_generator() -> None:
    # The first outputs of SplitMix64 for the state 1234567, as its authors' test vector has them.
    first = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    expected = [(value >> 11) * 2.0**-53 for value in first]
    assert SeededRng(1234567).uniform(3).tolist() == expected


def test_many_draws_are_one_stream_however_they_are_cut() -> None:
    once, bits = SeededRng(3).uniform(100), SeededRng(3)
    assert np.array_equal(once, np.concatenate([bits.uniform(n) for n in (1, 0, 60, 39)]))


def test_integers_are_uniform() -> None:
    counts = np.bincount(SeededRng(11).integers(10, 100_000), minlength=10)
    assert len(counts) == 10
    # Chi-square with 9 degrees of freedom: 27.9 is its 99.9th percentile.
    assert float(((counts - 10_000) ** 2 / 10_000).sum()) < 27.9


def test_other_seeds_bring_other_numbers() -> None:
    assert abs(np.corrcoef(SeededRng(0).uniform(10_000), SeededRng(1).uniform(10_000))[0, 1]) < 0.05
