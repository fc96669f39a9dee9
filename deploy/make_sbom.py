"""The software bill of materials of a device: CycloneDX 1.6, JSON, validated.

`python deploy/make_sbom.py CYCLONEDX_PY WHEEL OUT`: an environment is installed from deploy/constraints.txt
by its hashes and from the wheel, as on a device, and cyclonedx-py describes it: versions, licences, and what
needs what. The environment is that of this interpreter and machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(describe: str, wheel: str, out: Path) -> None:
    """Install, describe, and leave nothing but the description."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory(prefix="edged-sbom-") as folder:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        install = [
            *pip,
            "--python",
            f"{folder}/bin/python",
            "install",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
        ]
        subprocess.run(
            [*install, "--require-hashes", "-r", str(ROOT / "deploy" / "constraints.txt")], check=True
        )
        subprocess.run([*install, wheel], check=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        options = [
            "--pyproject",
            str(ROOT / "pyproject.toml"),
            "--mc-type",
            "application",
            "--output-reproducible",
        ]
        options += ["--spec-version", "1.6", "--output-format", "JSON", "--validate", "-o", str(out)]
        subprocess.run([describe, "environment", *options, f"{folder}/bin/python"], check=True)
    sys.stderr.write(f"{out}: {out.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
