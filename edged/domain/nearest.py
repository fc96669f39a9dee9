"""What an error says of a name that is not known: the names that are, and the nearest."""

from __future__ import annotations

from collections.abc import Collection
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
    import difflib

    folded = {other.casefold(): other for other in islice(known, COMPARED)}
    near = difflib.get_close_matches(name[:40].casefold(), folded, n=1)
    return f"did you mean {folded[near[0]]}?" if near else None
