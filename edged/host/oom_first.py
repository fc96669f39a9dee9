"""`python -m edged.host.oom_first MODULE`: runs a module as what may be ended when memory is short.

Before the module is imported, for importing it takes as much memory as a daemon has: the kernel would blame
the wrong process, or charge the wrong control group.
"""

from __future__ import annotations

import runpy
import sys

import edged.lazy_imports  # noqa: F401
from edged.host.limits import be_expendable, join_trainer


def main() -> None:
    """Join the trainer's part of the control group, raise the out-of-memory score, and run the module."""
    del sys.argv[0]
    for warning in (join_trainer(), *be_expendable()):
        if warning:
            sys.stderr.write(f"{sys.argv[0]}: {warning}\n")
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
