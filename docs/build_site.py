# ruff: noqa: INP001  a program, not a package
"""Build the documentation as a site: `make docs`, or with a directory to build in. Broken links are errors.

A site has no files above its pages: what pages link to in `configs/` and `deploy/` is staged below `files/`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_OUTSIDE = re.compile(r"\]\(((?:\.\./)+)((?:configs|deploy|systemd|benchmarks)/[^)#]*)")


def stage(target: Path) -> None:
    """Copy the pages to `target/docs` with all that they link to, and the site's configuration beside it."""
    pages = target / "docs"
    shutil.rmtree(target, ignore_errors=True)
    kinds = shutil.ignore_patterns("*.py", "*.toml", "__pycache__")
    shutil.copytree(ROOT / "docs", pages, ignore=kinds)
    shutil.copy(ROOT / "docs" / "zensical.toml", target)
    for page in sorted(pages.rglob("*.md")):
        page.write_text(_OUTSIDE.sub(lambda link: _staged(link, pages), page.read_text("utf-8")), "utf-8")


def _staged(link: re.Match[str], pages: Path) -> str:
    """Copy the file behind `link`, of a directory the nearest README, and return the link to the copy."""
    source = ROOT / link[2]
    if source.is_dir():
        source = (
            next(path for path in (source, *source.parents) if (path / "README.md").exists()) / "README.md"
        )
    copy = pages / "files" / source.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".md":
        copy.write_text(re.sub(r"\]\(((?:\.\./)+)docs/", r"](\1../", source.read_text("utf-8")), "utf-8")
    else:
        shutil.copy(source, copy)
    return f"]({link[1].removeprefix('../')}files/{source.relative_to(ROOT)}"


def main(target: Path) -> int:
    """Stage and build; the exit code is zensical's."""
    stage(target)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run([*command, "-f", target / "zensical.toml"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build" / "docs"))
