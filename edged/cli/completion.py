"""Completion of commands and options in bash, zsh and fish."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

from typer import Argument

# Public in the documentation of typer, and not in its types.
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]

VARIABLE = "_EDGED_COMPLETE"
Shell = Literal["bash", "zsh", "fish"]


def prepare() -> None:
    """Let typer answer a shell that asks for completions; it does nothing at other times."""
    if VARIABLE in os.environ:
        completion_init()


def completion(shell: Annotated[Shell, Argument(help="bash, zsh or fish")]) -> None:
    """Print the completion script of a shell, for example for `source <(edged completion bash)`."""
    sys.stdout.write(get_completion_script(prog_name="edged", complete_var=VARIABLE, shell=shell) + "\n")
