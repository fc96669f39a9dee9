"""Figures as people read them: the same in terminals, on pages and in reports."""

from __future__ import annotations

from math import isfinite

NONE = "–"
SHARES = ("accuracy", "balanced_accuracy", "coverage", "covered", "precision", "recall")
"""Metrics that are shown in percent, and their differences in points; all others are plain numbers."""
AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def percent(value: float | None) -> str:
    """Format a share.

    >>> percent(0.7812), percent(None)
    ('78.1 %', '–')
    """
    return NONE if value is None or not isfinite(value) else f"{100 * value:.1f} %"


def plain(value: float | None) -> str:
    """Format a number with four significant digits.

    >>> plain(0.123456), plain(1234567.0), plain(12)
    ('0.1235', '1,234,567', '12')
    """
    if value is None or not isfinite(value):
        return NONE
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def figure(name: str, value: float | None) -> str:
    """Format the value of a metric.

    >>> figure("accuracy", 0.97), figure("kappa", 0.625), figure("mae", 0.0521)
    ('97.0 %', '0.625', '0.0521')
    """
    return percent(value) if name in SHARES else plain(value)


def change(name: str, value: float | None) -> str:
    """Format a difference between two values of a metric.

    >>> change("accuracy", 0.0031), change("mae", -0.5)
    ('+0.3 points', '-0.5')
    """
    if value is None or not isfinite(value):
        return NONE
    return f"{100 * value:+.1f} points" if name in SHARES else f"{value:+.4g}"


def count(number: int, noun: str) -> str:
    """Format a number of things.

    >>> count(1, "label"), count(1200, "label")
    ('1 label', '1,200 labels')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(octets: float | None) -> str:
    """Format a number of bytes.

    >>> size(512), size(1_155_072), size(None)
    ('512 B', '1.2 MB', '–')
    """
    if octets is None:
        return NONE
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if octets < 1000 or unit == "TB":
            break
        octets /= 1000
    return f"{octets:.0f} {unit}" if unit == "B" else f"{octets:.1f} {unit}"


def age(seconds: float) -> str:
    """Format a duration, roughly.

    >>> age(0.26), age(59.0), age(150.0), age(90000.0)
    ('0.3 s', '59 s', '2.5 min', '25 h')
    """
    for length, unit in AGES:
        if seconds >= length * (2 if unit == "d" else 1):
            return f"{round(seconds / length, 1):g} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{round(seconds, 1):g} s"
