"""On the path of a child process: refuses to import what a device does not have, and keeps a record.

The record is the file named by EDGED_TEST_IMPORTS: who catches the ImportError is found out all the same.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

FORBIDDEN = ("onnx", "onnxruntime.training", "torch")


class Guard:
    """First of the finders, asked for every import."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Raise for a forbidden module or one inside of it; leave all others to the next finder."""
        del path, target
        if any(name == word or name.startswith(f"{word}.") for word in FORBIDDEN):
            with Path(os.environ["EDGED_TEST_IMPORTS"]).open("a", encoding="utf-8") as record:
                record.write(f"{name}\n")
            raise ModuleNotFoundError(f"{name} is not for devices", name=name)


sys.meta_path.insert(0, Guard())
