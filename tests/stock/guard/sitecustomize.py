"""On the path of a child process: refuses to import what it must not, and keeps records.

The file named by EDGED_TEST_IMPORTS gets the name of every forbidden import: who catches the ImportError is
found out all the same. `onnx` is for the processes that build or look at bundles alone. With
EDGED_TEST_PROCESSES each process leaves a file in that folder when it ends: its words, what it has loaded,
and the most memory that it held.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
from pathlib import Path

ALWAYS = ("onnxruntime.training", "torch")
BUILDERS = re.compile(r"edged (model|artifacts) |edged\.bundles\b")


class Guard:
    """First of the finders, asked for every import."""

    def __init__(self, words: str) -> None:
        self._forbidden = ALWAYS if BUILDERS.search(words) else (*ALWAYS, "onnx")

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise for a forbidden module or one inside of it; leave all others to the next finder."""
        del path, target
        if any(name == word or name.startswith(f"{word}.") for word in self._forbidden):
            with Path(os.environ["EDGED_TEST_IMPORTS"]).open("a", encoding="utf-8") as record:
                record.write(f"{name}\n")
            raise ModuleNotFoundError(f"{name} is not for this process", name=name)


def leave_record(folder: Path) -> None:
    """Write what this process was and has loaded; `peak` is in bytes."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = 1024 * int(status.partition("VmHWM:")[2].split()[0])
    told = {"words": sys.orig_argv, "modules": sorted(sys.modules), "peak": peak, "parent": os.getppid()}
    (folder / f"{os.getpid()}.json").write_text(json.dumps(told), encoding="utf-8")


sys.meta_path.insert(0, Guard(" ".join(sys.orig_argv)))
if "EDGED_TEST_PROCESSES" in os.environ:
    atexit.register(leave_record, Path(os.environ["EDGED_TEST_PROCESSES"]))
