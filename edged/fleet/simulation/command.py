"""`edged fleet sim`: simulate, and write the report."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from edged import logs
from edged.domain.messages.encoding import json_ready
from edged.errors import StorageError
from edged.fleet.simulation.report import page
from edged.fleet.simulation.simulation import SimulationPlan, simulate

if TYPE_CHECKING:
    from pathlib import Path


def run(plan: SimulationPlan, out: Path | None) -> dict[str, Any]:
    """The report, which is also written as `out`/report.json and `out`/index.html.

    Raises
    ------
    EdgedError
        As `simulate` does, and where `out` cannot be written.
    """
    logs.configure("error", "console")
    report = dict(json_ready(simulate(plan, lambda text: sys.stderr.write(f"{text}\n"))))
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            (out / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
            (out / "index.html").write_text(page(report), encoding="utf-8")
        except OSError as problem:
            raise StorageError(f"cannot be written: {problem.strerror}", where=str(out)) from problem
    return report


def lines_of(report: dict[str, Any]) -> list[str]:
    """Format the report for people."""
    final, sent = report["final"], report["bytes"]
    told = [f"{report['devices']} devices, {len(report['rounds'])} rounds, {report['seconds']:.0f} s"]
    if final["unseen"] is not None:
        told.append(f"those that took no part: {final['unseen']:.1%}")
    if "central" in report and report["central"]["unseen"] is not None:
        told.append(f"one model on all rows: {report['central']['unseen']:.1%}")
    told += [
        f"{kind}: {final[kind]['mean']:.1%} in the mean, worst {final[kind]['worst']:.1%}"
        for kind in ("global", "mixed")
        if final[kind] is not None
    ]
    if sent["ratio"] is not None:
        told.append(f"an update: {sent['mean']:,.0f} bytes, {sent['ratio']:.1%} of float32")
    return told
