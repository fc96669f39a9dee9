# ruff: noqa: INP001, T201  a program, not a package
"""Which wheel of which package a board gets: deploy/constraints*.txt, and the table of docs/boards.md.

Resolved for each CPython and machine with uv, then asked of pip, which names the very file that it would take
there; nothing is installed, and nothing may be built. Needs a network.

`python docs/make_wheel_table.py` resolves anew and writes; `--check` takes the versions that are written, and
says whether they still fit pyproject.toml, are to be had, and are those of the table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlparse

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "boards.md"
BEGIN, END = "<!-- wheels: by docs/make_wheel_table.py -->", "<!-- end of wheels -->"
# CPython and the newest glibc of the systems that have it.
SYSTEMS = {
    "3.10": (35, "JetPack 6"),
    "3.11": (36, "Raspberry Pi OS 12"),
    "3.12": (39, "Ubuntu 24.04"),
    "3.13": (41, "Raspberry Pi OS 13"),
    "3.14": (43, "Ubuntu 26.04"),
}
MACHINES = ("aarch64", "x86_64")
OLDEST_GLIBC, NEWEST_OF_UV = 17, 40
EXTRAS = ("signing", "codecs", "sparkplug", "web", "websockets")
FILES = {"constraints.txt": (), "constraints-all.txt": EXTRAS}
# Stock onnxruntime asked for these until 1.23, for scripts of its own: 70 MB that nothing of edged imports.
UNUSED = {"sympy", "mpmath", "coloredlogs", "humanfriendly"}

HEADER = """\
# Every package of a device{what}, with the SHA-256 of the wheels for
# CPython 3.10 to 3.14 on aarch64 and x86-64.
# pip install --require-hashes --only-binary=:all: --no-deps -r {name} && pip install --no-deps edged-*.whl
# Made by docs/make_wheel_table.py (`make constraints`), checked by `make wheels`.
"""


@dataclass(frozen=True, order=True)
class Target:
    """One interpreter on one machine."""

    python: str
    machine: str

    @property
    def environment(self) -> dict[str, str]:
        """What markers are evaluated with."""
        return {"python_version": self.python, "platform_machine": self.machine}

    @property
    def pip(self) -> list[str]:
        """Options that make pip choose as if it ran there."""
        glibc = SYSTEMS[self.python][0]
        tags = [f"manylinux_2_{n}_{self.machine}" for n in range(glibc, OLDEST_GLIBC - 1, -1)]
        platforms = [option for tag in (*tags, f"linux_{self.machine}") for option in ("--platform", tag)]
        return ["--python-version", self.python, "--implementation", "cp", *platforms]

    @property
    def uv(self) -> list[str]:
        """The same for uv."""
        glibc = min(SYSTEMS[self.python][0], NEWEST_OF_UV)
        return ["--python-version", self.python, "--python-platform", f"{self.machine}-manylinux_2_{glibc}"]


TARGETS = tuple(Target(python, machine) for python, machine in product(SYSTEMS, MACHINES))


@dataclass(frozen=True)
class Wheel:
    """A file that pip would take."""

    name: str
    version: str
    file: str
    sha256: str

    def cell(self) -> str:
        """Version, tag of the interpreter, and the oldest glibc that it runs on."""
        tags = parse_wheel_filename(self.file)[3]
        interpreter = min(tag.interpreter if tag.abi != "abi3" else f"{tag.interpreter} abi3" for tag in tags)
        glibcs = [tag.platform.split("_")[2] for tag in tags if tag.platform.startswith("manylinux_2")]
        if any(tag.platform == "any" for tag in tags):
            return f"{self.version}"
        return f"{self.version} {interpreter}" + (f" 2.{min(map(int, glibcs))}" if glibcs else "")


def run(*command: str) -> str:
    """The output of a command; the program ends with its words when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{' '.join(command[:6])} ... failed:\n{done.stderr[-3000:]}")
    return done.stdout


def resolve(target: Target, extras: Iterable[str], held: Iterable[str] | None) -> list[str]:
    """`name==version` of each package; `held` are versions to keep to."""
    named = [option for extra in extras for option in ("--extra", extra)]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(held or ()))
        file.flush()
        command = [sys.executable, "-m", "uv", "pip", "compile", "-q", "--no-header", "--no-annotate"]
        command += ["--only-binary", ":all:", "-c", file.name, *target.uv, *named, "pyproject.toml"]
        lines = [line for line in run(*command).splitlines() if "==" in line]
    stock = any(line.startswith("onnxruntime==") for line in lines)
    return [line for line in lines if not (stock and line.partition("==")[0] in UNUSED)]


def wheels(target: Target, pins: Iterable[str]) -> list[Wheel]:
    """The files that pip would take of these."""
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "pins.txt"
        listed.write_text("\n".join(pins), encoding="utf-8")
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--dry-run"]
        command += ["--ignore-installed", "--no-deps", "--only-binary=:all:", "--target", folder]
        run(*command, "--report", str(report), *target.pip, "-r", str(listed))
        installs = json.loads(report.read_text(encoding="utf-8"))["install"]
    return [_wheel(entry) for entry in installs]


def _wheel(entry: dict[str, dict[str, object]]) -> Wheel:
    info, metadata = entry["download_info"], entry["metadata"]
    file = PurePosixPath(unquote(urlparse(str(info["url"])).path)).name
    hashes = info["archive_info"]["hashes"]  # type: ignore[index]
    return Wheel(canonicalize_name(str(metadata["name"])), str(metadata["version"]), file, hashes["sha256"])


Chosen = dict[Target, list[Wheel]]


def lines(chosen: Chosen) -> Iterator[str]:
    """The packages as requirements with markers and hashes."""
    found: dict[tuple[str, str], dict[Target, str]] = defaultdict(dict)
    for target, several in chosen.items():
        for wheel in several:
            found[wheel.name, wheel.version][target] = wheel.sha256
    for (name, version), hashes in sorted(found.items()):
        marker = marker_of(set(hashes))
        yield f"{name}=={version}" + (f" ; {marker}" if marker else "") + " \\"
        last = sorted(set(hashes.values()))
        yield from (f"    --hash=sha256:{one}" + " \\" * (one != last[-1]) for one in last)


def marker_of(targets: set[Target]) -> str:
    """The marker that is true on these targets and on no other."""
    pythons, machines = {t.python for t in targets}, {t.machine for t in targets}
    if len(targets) < len(pythons) * len(machines):
        return " or ".join(f"({marker_of({target})})" for target in sorted(targets))
    parts = []
    if pythons != set(SYSTEMS):
        one_of = " or ".join(f"python_version == '{p}'" for p in SYSTEMS if p in pythons)
        parts.append(f"({one_of})" if len(pythons) > 1 else one_of)
    if machines != set(MACHINES):
        parts.append(f"platform_machine == '{machines.pop()}'")
    return " and ".join(parts)


def read(path: Path) -> list[tuple[Requirement, list[str]]]:
    """The requirements of a constraints file, each with its hashes."""
    text = path.read_text(encoding="utf-8").replace(" \\\n", " ")
    rows = (line for line in text.splitlines() if line and not line.startswith("#"))
    parts = (row.split(" --hash=sha256:") for row in rows)
    return [(Requirement(first), [one.strip() for one in rest]) for first, *rest in parts]


def applying(path: Path, target: Target) -> dict[str, list[str]]:
    """What a constraints file says for a target: hashes by `name==version`."""
    return {
        f"{one.name}{one.specifier}": hashes
        for one, hashes in read(path)
        if one.marker is None or one.marker.evaluate(target.environment)
    }


def table(chosen: Chosen) -> str:
    """A row for each package, a column for each system, on aarch64."""
    boards = {
        t.python: {w.name: w for w in several} for t, several in chosen.items() if t.machine == "aarch64"
    }
    names = sorted({name for several in boards.values() for name in several})
    rows = [
        ["package", *(f"{python}, {SYSTEMS[python][1]}" for python in boards)],
        ["---"] * (len(boards) + 1),
    ]
    for name in names:
        of = [several.get(name) for several in boards.values()]
        rows.append([f"`{name}`", *("–" if wheel is None else wheel.cell() for wheel in of)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def page(text: str, rows: str) -> str:
    """The page with another table in it."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{rows}\n{END}{rest.partition(END)[2]}"


def renew() -> None:
    """Resolve anew, and write all of it."""
    for name, extras in FILES.items():
        chosen = {target: wheels(target, resolve(target, extras, None)) for target in TARGETS}
        what = f" with the extras {', '.join(extras)}" if extras else ""
        text = HEADER.format(name=name, what=what) + "\n".join(lines(chosen)) + "\n"
        (ROOT / "deploy" / name).write_text(text, encoding="utf-8")
        print(f"deploy/{name}: {len(list(read(ROOT / 'deploy' / name)))} packages", file=sys.stderr)
        if not extras:
            PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), table(chosen)), encoding="utf-8")


def check() -> list[str]:
    """What does not hold of what is written, a line each."""
    wrong = []
    for name, extras in FILES.items():
        chosen: Chosen = {}
        for target in TARGETS:
            held = applying(ROOT / "deploy" / name, target)
            where = f"deploy/{name}, CPython {target.python} on {target.machine}"
            missing = set(resolve(target, extras, held)) ^ set(held)
            wrong += [f"{where}: {one} is not as pyproject.toml wants it" for one in sorted(missing)]
            chosen[target] = wheels(target, held)
            strange = [w.file for w in chosen[target] if w.sha256 not in held[f"{w.name}=={w.version}"]]
            wrong += [f"{where}: {one} is another file" for one in strange]
            print(f"{where}: {len(chosen[target])} wheels", file=sys.stderr)
        text = PAGE.read_text(encoding="utf-8")
        if not extras and page(text, table(chosen)) != text:
            wrong.append("docs/boards.md: its table is not that of deploy/constraints.txt")
    return wrong


def main() -> int:
    """Write, or say what does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    if not parser.parse_args().check:
        renew()
        return 0
    wrong = check()
    for line in wrong:
        print(line, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
