"""What an error says of a name that is not known: the names that are, and the nearest."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from itertools import islice

SHOWN = 12
COMPARED = 50


def one_of(names: Collection[str]) -> str:
    """The first names, and how many more there are.

    >>> one_of(["ok", "worn"])
    'ok, worn'
    """
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(name[:40] for name in islice(names, SHOWN)) + more


def did_you_mean(name: str, known: Collection[str]) -> str | None:
    """A question after the name nearest to `name`; None when none is near.

    >>> did_you_mean("Temp", ["vib", "temp"])
    'did you mean temp?'
    """
    some = list(islice(known, COMPARED))
    at = _nearest(name[:40].casefold(), tuple(other[:40].casefold() for other in some))
    return None if at is None else f"did you mean {some[at]}?"


@lru_cache(maxsize=64)  # a sensor that is refused sends the same names again and again
def _nearest(name: str, known: tuple[str, ...]) -> int | None:
    """The position of the name that is most like `name`; None where none is like it."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    return known.index(near[0]) if near else None
