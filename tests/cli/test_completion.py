"""Completion in shells, with a real bash; of zsh and fish what their scripts ask the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}


def _bash(*words: str) -> set[str]:
    script = (
        'source <(edged completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1));'
        ' _edged_completion edged; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "-c", script, "bash", "edged", *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_words_with_a_choice() -> None:
    assert _bash("st") == {"status"}
    assert _bash("fleet", "round", "") == {"pause", "resume", "abandon", "approve"}
    assert {"--allow-downgrade", "--help"} <= _bash("run", "--")


@pytest.mark.parametrize(
    ("shell", "more"), [("zsh", {}), ("fish", {"_TYPER_COMPLETE_FISH_ACTION": "get-args"})]
)
def test_other_shells_are_answered(shell: str, more: dict[str, str]) -> None:
    asked = {"_EDGED_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "edged config ", **more}
    script = subprocess.run(
        ["edged", "completion", shell],
        check=True,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
    ).stdout
    assert all(name in script for name in asked)
    done = subprocess.run(
        ["edged"], check=False, capture_output=True, text=True, env={**ENVIRONMENT, **asked}, timeout=60
    )
    assert {"check", "show", "schema"} <= {word.strip('":(') for word in done.stdout.split()} | {
        line.split('"')[1] for line in done.stdout.splitlines() if '"' in line
    }


def test_a_shell_that_is_not_known_is_an_error() -> None:
    done = subprocess.run(
        ["edged", "completion", "csh"],
        check=False,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
    )
    assert done.returncode == 2
    assert "csh" in done.stderr
    assert "'bash', 'zsh', 'fish'" in done.stderr
