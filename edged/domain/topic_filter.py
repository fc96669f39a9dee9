"""Topic filters of MQTT (MQTT 5.0 section 4.7)."""

from __future__ import annotations

MAX_BYTES = 65535


def filter_problem(pattern: str) -> str | None:
    """Return what is wrong with a topic filter; None if it is valid.

    >>> filter_problem("sensors/+/vib/#"), filter_problem("a#")
    (None, '`+` and `#` must be levels of their own')
    """
    levels = pattern.split("/")
    if not 0 < len(pattern.encode(errors="replace")) <= MAX_BYTES or "\0" in pattern:
        return "a topic filter has 1 to 65535 bytes and no NUL"
    if "#" in levels[:-1]:
        return "`#` must be the last level"
    if any(len(level) > 1 and set(level) & set("#+") for level in levels):
        return "`+` and `#` must be levels of their own"
    return None
