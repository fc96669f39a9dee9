"""Builds Debian packages of edged: a virtual environment in /opt/edged on the distribution's own Python.

`python deploy/debian/build.py WHEEL -o FOLDER [--suite bookworm] [--arch amd64 --arch arm64]`. What the wheel
asks for is resolved for the target, not for this machine, and taken as binary wheels alone; nothing of the
target is run. Needs uv and dpkg-deb. With SOURCE_DATE_EPOCH the same inputs give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SITE = "opt/edged/lib/python{python}/site-packages"
# What a configuration may ask for on a device without a network: formats of messages, keys, HTTP.
EXTRAS = "codecs,sparkplug,signing,web,websockets"
STATE = "/var/lib/edged"
PLATFORMS = {"amd64": "x86_64-manylinux_2_35", "arm64": "aarch64-manylinux_2_35"}
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
# Tests of other packages: 20 MB that no device needs.
UNUSED = ("onnx/backend/test", "onnx/test", "numpy/**/tests", "sympy/**/tests", "mpmath/tests", "bin")
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/edged",
    "zsh": "usr/share/zsh/vendor-completions/_edged",
    "fish": "usr/share/fish/vendor_completions.d/edged.fish",
}
COMMAND = """#!/opt/edged/bin/python3
import sys

from edged.cli.main import main

sys.exit(main())
"""
SCHEMAS = """
from edged.storage.journal import journal
from edged.storage.outbox import tables as outbox
from edged.storage.samples import tables as samples
for name, tables in (("samples", samples), ("state", journal), ("outbox", outbox)):
    print(f"{name}.db={tables.FORMAT}")
"""


@dataclass(frozen=True)
class Suite:
    """A release of Debian: its Python, the end of its package versions, and where it keeps units."""

    python: str
    suffix: str
    units: str
    systemd: int


SUITES = {
    "bookworm": Suite("3.11", "deb12", "lib/systemd/system", 252),
    "trixie": Suite("3.13", "deb13", "usr/lib/systemd/system", 257),
}


def debian_version(wheel: Path, suite: Suite) -> str:
    """The version of a wheel as Debian sorts it: candidates come before the release.

    >>> debian_version(Path("edged-0.2.0rc1-py3-none-any.whl"), SUITES["bookworm"])
    '0.2.0~rc1-1+deb12'
    """
    upstream = re.sub(r"(?:\.?(dev)|(a|b|rc))(\d+)", r"~\1\2\3", wheel.name.split("-")[1])
    return f"{upstream}-1+{suite.suffix}"


def install(wheel: Path, tree: Path, suite: Suite, arch: str, constraints: Path | None) -> None:
    """Put the environment into `tree`, as it will lie in the file system."""
    site = tree / SITE.format(python=suite.python)
    pins = [] if constraints is None else ["--constraints", str(constraints)]
    run(
        "uv", "pip", "install", "--quiet", "--no-config", "--target", str(site),
        "--python-platform", PLATFORMS[arch], "--python-version", suite.python,
        "--only-binary", ":all:", "--link-mode", "copy", *pins, f"{wheel}[{EXTRAS}]",
    )  # fmt: skip
    for pattern in UNUSED:
        for unused in list(site.glob(pattern)):
            shutil.rmtree(unused)
    (site / ".lock").unlink(missing_ok=True)
    programs = tree / "opt/edged/bin"
    programs.mkdir()
    (programs / "python3").symlink_to(f"/usr/bin/python{suite.python}")
    (programs / "python").symlink_to("python3")
    write(programs / "edged", COMMAND, mode=0o755)
    write(
        tree / "opt/edged/pyvenv.cfg",
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {suite.python}\n",
    )


def add_files(tree: Path, suite: Suite, version: str) -> None:
    """Units, configuration and documentation."""
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/edged").symlink_to("/opt/edged/bin/edged")
    for unit in (*(ROOT / "systemd").glob("*.service"), *(ROOT / "systemd").glob("*.slice")):
        write(tree / suite.units / unit.name, unit.read_text())
    if suite.systemd >= 254:  # the first that knows these settings
        backoff = (ROOT / "systemd/edged-backoff.conf").read_text()
        for name in ("edged", "edged@"):
            write(tree / suite.units / f"{name}.service.d/backoff.conf", backoff)
    write(tree / "usr/lib/sysusers.d/edged.conf", (ROOT / "systemd/edged.sysusers").read_text())
    write(tree / "etc/default/edged", (HERE / "edged.default").read_text())
    write(tree / "etc/edged/edged.yaml.template", template())
    documentation = tree / "usr/share/doc/edged"
    for example in sorted((ROOT / "configs").glob("*.yaml")):
        write(documentation / "examples" / example.name, example.read_text())
    write(documentation / "README.md", (ROOT / "docs/install.md").read_text())
    write(documentation / "copyright", copyright_file())
    changes = f"edged ({version}) stable; urgency=medium\n\n  * See CHANGELOG.md of this version.\n\n"
    signed = f" -- {maintainer()}  {formatdate(epoch())}\n"
    (documentation / "changelog.Debian.gz").write_bytes(gzip.compress((changes + signed).encode(), mtime=0))
    log = gzip.compress((ROOT / "CHANGELOG.md").read_bytes(), mtime=0)
    (documentation / "changelog.gz").write_bytes(log)
    add_command_help(tree)
    # Not loaded by default: a site that wants it copies it to /etc/apparmor.d (docs/install.md).
    profile = (ROOT / "deploy/apparmor/edged").read_text()
    write(tree / "usr/share/apparmor/extra-profiles/edged", profile)
    overrides = (HERE / "edged.lintian-overrides").read_text()
    write(tree / "usr/share/lintian/overrides/edged", overrides)


def add_command_help(tree: Path) -> None:
    """The manual page, and what shells complete with; both are made by this checkout's own code."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "edged.1"
        run(
            sys.executable,
            str(ROOT / "docs/make_command_reference.py"),
            "--man",
            str(page),
            PYTHONPATH=str(ROOT),
        )
        manual = tree / "usr/share/man/man1/edged.1.gz"
        manual.parent.mkdir(parents=True)
        manual.write_bytes(gzip.compress(page.read_bytes(), mtime=0))
    for shell, place in COMPLETIONS.items():
        script = run(sys.executable, "-m", "edged", "completion", shell, PYTHONPATH=str(ROOT))
        write(tree / place, script + "\n")


def add_control(tree: Path, suite: Suite, arch: str, version: str, schemas: str) -> None:
    """What dpkg reads, and the scripts that it runs."""
    major, minor = suite.python.split(".")
    size = sum(path.lstat().st_size for path in tree.rglob("*") if not path.is_dir()) // 1024
    fields = {
        "Package": "edged",
        "Version": version,
        "Architecture": arch,
        "Maintainer": maintainer(),
        "Installed-Size": str(size),
        "Depends": f"python3 (>= {suite.python}), python3 (<< {major}.{int(minor) + 1}), systemd (>= 250),"
        " passwd, libc6 (>= 2.35), libgcc-s1, libstdc++6 (>= 12)",
        "Recommends": "mosquitto",
        "Suggests": "mosquitto-clients",
        "Section": "net",
        "Priority": "optional",
        "Description": "keeps a small ONNX model accurate where it runs\n"
        " A daemon for gateways: it buffers sensor data that comes over MQTT, trains a\n"
        " small network on it in a process of its own, and swaps the better model in\n"
        " without losing a prediction.",
    }
    control = "".join(f"{name}: {value}\n" for name, value in fields.items())
    write(tree / "DEBIAN/control", control)
    kept = sorted(f"/{path.relative_to(tree)}\n" for path in (tree / "etc").rglob("*") if path.is_file())
    write(tree / "DEBIAN/conffiles", "".join(kept))
    for script in SCRIPTS:
        text = (HERE / script).read_text().replace("@SCHEMAS@", schemas)
        write(tree / "DEBIAN" / script, text, mode=0o755)


def template() -> str:
    """The configuration to begin with, on the service's state directory: commands by hand read it, too."""
    text, lines = re.subn(
        r"(?m)^  dir: \./state .*$",
        f"  dir: {STATE}      # where everything is kept that must survive a power cut",
        (ROOT / "configs/classifier.yaml").read_text(),
    )
    if lines != 1:
        sys.exit("configs/classifier.yaml has no line `dir: ./state` that could be replaced")
    return text


def copyright_file() -> str:
    """Licence of edged, and where those of the packages beside it are."""
    return (
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"
        "Files: *\nCopyright: the authors of edged\nLicense: Apache-2.0\n"
        " On Debian systems the text is in /usr/share/common-licenses/Apache-2.0. Packages beside\n"
        " edged have licences of their own, in the .dist-info folders of /opt/edged.\n"
    )


def maintainer() -> str:
    """Who answers for the package, told as Debian's tools are: DEBFULLNAME and DEBEMAIL."""
    name = os.environ.get("DEBFULLNAME", "edged developers")
    return f"{name} <{os.environ.get('DEBEMAIL', 'edged@example.org')}>"


def epoch() -> int:
    """Seconds of the newest time in the package: SOURCE_DATE_EPOCH, else that of the last commit."""
    told = os.environ.get("SOURCE_DATE_EPOCH")
    return int(told or run("git", "-C", str(ROOT), "log", "-1", "--format=%ct"))


def schemas_of(wheel: Path) -> str:
    """The newest schema of each database that this wheel knows."""
    return " ".join(run(sys.executable, "-c", SCHEMAS, PYTHONPATH=str(wheel.resolve())).split())


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """A file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def settle(tree: Path) -> None:
    """Modes and times that do not tell on which machine this was made."""
    newest = epoch()
    scripts = {tree / "DEBIAN" / name for name in SCRIPTS}
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            runs = path.is_dir() or path.parent == tree / "opt/edged/bin" or path in scripts
            path.chmod(0o755 if runs else 0o644)
        os.utime(path, (newest, newest), follow_symlinks=False)


def run(*command: str, **variables: str) -> str:
    """Output of a command; ends this program when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables)
    if done.returncode:
        sys.exit(f"{command[0]} {' '.join(command[1:4])} ... failed:\n{done.stderr or done.stdout}")
    return done.stdout


def build(
    wheel: Path, out: Path, suite: Suite, arch: str, constraints: Path | None, compression: str
) -> Path:
    """One package; its path."""
    version = debian_version(wheel, suite)
    with tempfile.TemporaryDirectory(prefix="edged-deb-") as folder:
        tree = Path(folder, "edged")
        install(wheel, tree, suite, arch, constraints)
        add_files(tree, suite, version)
        add_control(tree, suite, arch, version, schemas_of(wheel))
        settle(tree)
        out.mkdir(parents=True, exist_ok=True)
        package = out / f"edged_{version}_{arch}.deb"
        # One thread: how xz divides its input would depend on how many there are.
        packed = ["-Zxz", "-z1", "--threads-max=1"] if compression == "xz" else ["-Znone"]
        options = ["--root-owner-group", *packed, "--build"]
        run("dpkg-deb", *options, str(tree), str(package), SOURCE_DATE_EPOCH=str(epoch()))
    return package


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("-o", dest="out", type=Path, required=True)
    parser.add_argument("--suite", choices=SUITES, default="bookworm")
    parser.add_argument("--arch", choices=PLATFORMS, action="append")
    parser.add_argument("--constraints", type=Path, help="versions of the packages beside edged")
    parser.add_argument("--compression", choices=["xz", "none"], default="xz", help="none to try it out")
    given = parser.parse_args()
    for arch in given.arch or PLATFORMS:
        package = build(
            given.wheel, given.out, SUITES[given.suite], arch, given.constraints, given.compression
        )
        print(f"{package} ({package.stat().st_size / 1e6:.0f} MB)")


if __name__ == "__main__":
    main()
