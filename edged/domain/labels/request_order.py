"""Which open label requests are worth a person's time first, by what the model says of them now."""

from __future__ import annotations

from collections.abc import Sequence

SURE = 0.99  # margin between the two likeliest classes from which a label would teach nothing


def in_order(margins: Sequence[float], random: Sequence[bool]) -> list[int]:
    """Places of requests, those first of which the model is least sure by now.

    Then come those that were drawn at `random`: they keep the labels that judge models like the stream, so
    the model may be sure of them. Of the others, those it has become sure of are left out, unless there is
    nothing else.

    >>> in_order([0.9, 0.1, 0.995, 0.2, 0.999], [False, False, False, True, True])
    [1, 0, 3, 4]
    >>> in_order([1.0, 0.995], [False, False])
    [1, 0]
    """
    by_margin = sorted(range(len(margins)), key=lambda at: (random[at], margins[at]))
    open_still = [at for at in by_margin if random[at] or margins[at] < SURE]
    return open_still or by_margin
