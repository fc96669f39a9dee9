"""Flower as it is installed for real: a SuperLink with TLS, SuperNodes with keys, and who they talk to."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

from edged.workbench.demo.broker import free_port
from tests.certificates import Authority
from tests.running_device import wait_until

APP = Path(__file__).parents[3] / "deploy" / "flower"
SILENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
HOME = re.compile(r"AF_INET6?, .*(inet_addr\(\"127\.|inet_pton\(AF_INET6, \"(::1|::ffff:127\.))")


class FlowerSite:
    """A SuperLink and its SuperNodes in `folder`; the programs are those beside the interpreter `python`."""

    def __init__(self, folder: Path, python: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._bin = folder, python.parent
        self.port = free_port()
        authority = Authority(folder)
        self.ca = authority.file
        self.cert, self.key = authority.issue("server", hosts=("localhost", "127.0.0.1"))
        path = f"{self._bin}:{os.environ['PATH']}"
        own = {"FLWR_HOME": str(folder / "home"), "PATH": path}
        self._environment = os.environ | SILENT | own
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "home").mkdir(exist_ok=True)
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "site"\n[superlink.site]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.ca}"\n'
        )

    def _spawn(self, name: str, program: str, *arguments: str) -> None:
        traced = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=connect", "-o",
                  str(self.folder / f"{name}.strace")]  # fmt: skip
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*traced, str(self._bin / program), *arguments], stdout=log, stderr=log,
                env=self._environment, start_new_session=True, cwd=self.folder,
            )  # fmt: skip

    def superlink(self) -> None:
        """Start the SuperLink and wait until it answers."""
        tls = {"ssl-ca-certfile": self.ca, "ssl-certfile": self.cert, "ssl-keyfile": self.key}
        self._spawn(
            "superlink", "flower-superlink", *(f"--{name}={path}" for name, path in tls.items()),
            "--host", "127.0.0.1", "--port", str(self.port), "--enable-supernode-auth",
            "--database", str(self.folder / "superlink.db"), "--disable-runtime-dependency-installation",
        )  # fmt: skip
        wait_until(lambda: self.flwr("supernode", "list", "site", check=False).returncode == 0, 60)

    def supernode(self, name: str, socket: Path, *, registered: bool = True) -> None:
        """Start a SuperNode with a key of its own."""
        key = self.folder / f"{name}.key"
        if not key.exists():
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key)], check=True
            )
            if registered:
                self.flwr("supernode", "register", f"{key}.pub", "site")
        self._spawn(
            name, "flower-supernode", "--root-certificates", str(self.ca), "--superlink",
            f"127.0.0.1:{self.port}", "--auth-supernode-private-key", str(key), "--port", str(free_port()),
            "--node-config", f'edged-socket="{socket}"',
        )  # fmt: skip

    def flwr(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command of Flower's."""
        return subprocess.run(
            [str(self._bin / "flwr"), *arguments], capture_output=True, text=True, check=check, timeout=300,
            env=self._environment, cwd=self.folder,
        )  # fmt: skip

    def run_app(self, app: Path = APP, **config: object) -> str:
        """Run an app to its end with this run configuration; return what it logs."""
        given = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in config.items())
        answer = self.flwr("run", str(app), "site", "--stream", "--run-config", given)
        return answer.stdout + answer.stderr

    def online(self) -> int:
        """Number of SuperNodes that are connected."""
        return self.flwr("supernode", "list", "site").stdout.count("online")

    def log(self, name: str) -> str:
        """What a program has said."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self, name: str) -> None:
        """End a program and its children at once."""
        process = self.processes.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)

    def close(self) -> None:
        """End all."""
        for name in list(self.processes):
            self.kill(name)

    def strangers(self) -> list[str]:
        """Connections that any of the programs has tried to make beyond this machine."""
        lines = [line for path in self.folder.glob("*.strace") for line in path.read_text().splitlines()]
        tried = [line for line in lines if "AF_INET" in line]
        assert len(tried) > 50  # they do talk to each other
        return [line for line in tried if HOME.search(line) is None]
