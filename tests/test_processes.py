"""What each process loads: the daemon stays small, and nobody loads what it must not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import edged

FORBIDDEN_IN_DAEMON = (
    "onnxruntime.training",
    "torch",
    "onnx",
    "edged.bundles",
    "edged.trainer",
    "typer",
    "rich",
    "cryptography",
)


def modules_after(statement: str) -> set[str]:
    script = f"import sys; {statement}; print('\\n'.join(m for m, v in sys.modules.items() if v is not None))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_daemon_never_imports_the_training_stack() -> None:
    loaded = modules_after("import edged.daemon")
    bad = {
        m
        for m in loaded
        if m in FORBIDDEN_IN_DAEMON or m.startswith(tuple(f"{f}." for f in FORBIDDEN_IN_DAEMON))
    }
    assert not bad
    optional = {"cbor2", "msgpack", "google.protobuf", "zstandard", "edged.device.integrations.sparkplug"}
    optional |= {"starlette", "uvicorn", "edged.device.web"}
    assert not loaded & optional, "what only some configurations need is imported for those"
    assert "edged.engines.inference" in loaded, "the check looks at the right process"


def test_the_check_can_fail() -> None:
    assert "edged.engines.native" in modules_after("import edged.engines.native")
    assert "onnx" in modules_after("import edged.bundles.build")


def test_the_offline_phase_never_imports_torch(tmp_path: Path) -> None:
    """Where it is installed, which a package that takes its place here makes sure of."""
    (tmp_path / "torch").mkdir()
    told = tmp_path / "imported"
    (tmp_path / "torch" / "__init__.py").write_text(f"open({str(told)!r}, 'w').close()\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(edged.__file__).parents[1]}"}

    def run(code: str) -> None:
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, env=environment, timeout=60
        )

    model, bundle = str(tmp_path / "m.onnx"), str(tmp_path / "b")
    commands = [
        ["model", "new", "mlp", "--inputs", "4", "--outputs", "2", "-o", model],
        ["artifacts", "check", model],
        ["artifacts", "build", model, "-o", bundle, "--loss", "mse"],
        ["artifacts", "verify", bundle],
    ]
    run(f"from edged.cli.main import app\nfor words in {commands!r}:\n    app(words, standalone_mode=False)")
    assert (tmp_path / "b" / "bundle.json").exists()
    assert not told.exists()
    run("import torch")
    assert told.exists(), "the check can fail"


def test_the_command_line_starts_without_onnxruntime() -> None:
    loaded = modules_after("import edged.cli.main")
    assert not {m for m in loaded if m.split(".")[0] in ("onnxruntime", "onnx", "paho", "apscheduler")}
