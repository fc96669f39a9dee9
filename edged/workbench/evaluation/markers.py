"""Moments of an evaluation as marks on its charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.charts.lines import Marks

if TYPE_CHECKING:
    from collections.abc import Mapping


def moments(history: Mapping[str, Any]) -> list[Marks]:
    """When drift was signalled and models changed."""
    drifts = [(d["offset"] - 1, f"{d['level']}: {d['detector']} on {d['source']}") for d in history["drifts"]]
    swaps = [(s["sample"], f"model {s['version']} from sample {s['sample']:,} on") for s in history["swaps"]]
    return [Marks("drift", drifts), Marks("swap", swaps)]
