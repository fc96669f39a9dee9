"""Nodes that did not answer in time: left out of the next rounds, so that one is not waited for in each."""

from __future__ import annotations

LONGEST = 16


class AbsenceBackoff:
    """Who is left out, and for how long: 1 round, then 2, 4, up to 16 while it stays silent.

    Flower takes a node that died for online for another minute, and waits for it as long as for any other.

    >>> absent = AbsenceBackoff()
    >>> absent.silent(7, 1)
    >>> [absent.left_out(7, number) for number in (2, 3)]
    [True, False]
    >>> absent.silent(7, 3)
    >>> [absent.left_out(7, number) for number in (4, 5, 6)]
    [True, True, False]
    >>> absent.answered(7)
    >>> absent.left_out(7, 4)
    False
    """

    def __init__(self) -> None:
        self._silent: dict[int, tuple[int, int]] = {}

    def silent(self, node: int, number: int) -> None:
        """Record that a node did not answer in round `number`."""
        times, last = self._silent.get(node, (0, 0))
        if number > last:
            self._silent[node] = times + 1, number

    def answered(self, node: int) -> None:
        """Record that a node has answered."""
        self._silent.pop(node, None)

    def left_out(self, node: int, number: int) -> bool:
        """Whether round `number` leaves a node out."""
        times, last = self._silent.get(node, (0, 0))
        return times > 0 and last < number <= last + min(LONGEST, 2 ** (times - 1))
