"""What the daemon costs while little happens: processor time, and how often it wakes up.

A real mosquitto and the real daemon with its default configuration, at no message and at ten messages a
second. Processor time is utime and stime of /proc/PID/stat, in percent of one core; wake-ups are the
voluntary context switches of all its threads (/proc/PID/task/TID/status): how often one of them has slept
and was woken. The first seconds, in which it starts, do not count.

`python benchmarks/idle.py [--seconds S] [--settle S] [--rate R ...] [--json] [--out FILE]`
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from flash import streaming
from output import Row, finish, options

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, without its children's."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def wakes(pid: int) -> dict[str, int]:
    """Voluntary context switches of each thread, by its name and number."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = dict(
            line.split(":", 1)
            for line in (task / "status").read_text(encoding="ascii").splitlines()
            if ":" in line
        )
        found[f"{lines['Name'].strip()}-{task.name}"] = int(lines["voluntary_ctxt_switches"])
    return found


def measure(rate: float, settle: float, seconds: float) -> Row:
    with tempfile.TemporaryDirectory() as folder, streaming("idle", Path(folder), rate) as (process, _, _):
        time.sleep(settle)
        used, woken, began = cpu_seconds(process.pid), wakes(process.pid), time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - began
        after = wakes(process.pid)
        each = {name: (count - woken.get(name, 0)) / elapsed for name, count in after.items()}
        return {
            "messages_per_s": rate,
            "cpu_percent": round(100 * (cpu_seconds(process.pid) - used) / elapsed, 2),
            "wakeups_per_s": round(sum(each.values()), 1),
            "threads": len(after),
            "busiest": round(max(each.values()), 1),
        }


def line(row: Row) -> str:
    return (
        f"{row['messages_per_s']:>5} messages/s: {row['cpu_percent']:>5} % of a core, "
        f"{row['wakeups_per_s']:>6} wake-ups/s in {row['threads']} threads, {row['busiest']} in one"
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--settle", type=float, default=20.0)
    parser.add_argument("--rate", type=float, action="append", help="messages a second; 0 and 10")
    args = parser.parse_args()
    finish(
        "idle", [measure(rate, args.settle, args.seconds) for rate in args.rate or (0.0, 10.0)], args, line
    )


if __name__ == "__main__":
    main()
