"""First openings: what comes from elsewhere is opened in a child process before anything here opens it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from edged.clock import Clock
from edged.config import Config
from edged.config.commands import InstallConfig
from edged.domain.bundle_contents import FileEntry
from edged.domain.child_orders import FirstOpening, Opened, OpeningKind
from edged.errors import (
    BundleError,
    ConfigError,
    CorruptError,
    EdgedError,
    RefusedError,
    StorageError,
    UnavailableError,
)
from edged.host.child_process import ChildEndedError, ending, run_order
from edged.logs import get_logger
from edged.signing import key_id
from edged.storage.files.atomic import make_directory
from edged.storage.models.bundles import DESCRIPTION
from edged.storage.models.trust import Trust, Way

MODULE = "edged.trainer.first_opening"
NAMES: dict[OpeningKind, str] = {"bundle": "bundle", "model": "model", "configured": "configured bundle"}
SIZE_FACTOR = 16  # of a bundle's size, for the copies that training makes of it
STARTING_SECONDS = 5  # of processor time, for Python and onnxruntime

log = get_logger("edged.first_opening")


class FirstOpenings:
    """Opens bundles and models for the first time, in a child process with limits.

    `config`: section `install` has the limits; `model.keys` must have signed a bundle. `trust` remembers what
    was opened, and how new it was. `clock` judges when a bundle expires. `shared`: what this process has
    opened for other streams, which adds to it; what is the same for this one is not opened again.
    """

    def __init__(
        self, config: Config, trust: Trust, clock: Clock, shared: dict[object, Opened] | None = None
    ) -> None:
        self._config, self.trust, self._clock = config, trust, clock
        self._shared = {} if shared is None else shared

    def open_configured(self) -> None:
        """Open the configured bundle, unless that was done before.

        Raises EdgedError when it is not usable.
        """
        self.trust.repair()
        path = self._config.model.bundle
        if self._config.model.keys:
            make_directory(self.trust.folder)
        if path is None:
            return
        file = path if path.is_file() else path / DESCRIPTION
        if not file.is_file():
            return  # opening it later says what is missing
        sha256 = FileEntry.of(file).sha256
        least, version = self._least("configured"), self.trust.opened(sha256)
        if version is not None and (version >= least or not self._config.model.keys):
            return
        same = (sha256, least, repr(self._config.stream.to_schema().fixed()))
        opened = self._shared.get(same) or self._open("configured", path, least=least)
        self._shared[same] = opened
        self.trust.record_opened(sha256, opened.version, opened.signer)

    def open_model(self, file: Path, bundle: Path) -> None:
        """Read the parameters in a model file for a bundle; EdgedError when it is not usable."""
        self._open("model", file, bundle=bundle)

    def install_bundle(self, file: Path, keep: Iterable[str], *, downgrade: bool) -> str:
        """Verify, open and install a bundle file; its fingerprint. Other bundles go, except those of `keep`.

        With `downgrade` it may be older than those before, and later ones are compared with it. Raises
        EdgedError when it is not usable.
        """
        least = 0 if downgrade else self._least("installed")
        opened = self._open("bundle", file, keep, least=least)
        if downgrade:
            self.trust.forget_versions()
        self.trust.record_installed(opened.signer, opened.version)
        return opened.fingerprint

    def _least(self, way: Way) -> int:
        current = self.trust.current(self._config.model.keys)
        return self.trust.least_version(way, [key_id(key) for key in current])

    def _open(
        self,
        kind: OpeningKind,
        source: Path,
        keep: Iterable[str] = (),
        bundle: Path | None = None,
        least: int = 0,
    ) -> Opened:
        config, limits = self._config, self._config.install or InstallConfig()
        keys = self.trust.current(config.model.keys)
        if config.model.keys and not keys:
            raise RefusedError("every key is revoked", where="model.keys", remedy="name another one")
        size = sum(path.stat().st_size for path in _files(source))
        memory = limits.constants.memory_limit + SIZE_FACTOR * size
        seconds = STARTING_SECONDS + round(limits.constants.timeout)
        # Not the configuration itself: to read that takes longer than to open a bundle.
        order = FirstOpening(
            kind, config.storage.dir, config.stream.to_schema().fixed(), config.training.batch,
            limits.max_bytes, tuple(keys), source, os.getpid(), memory,
            seconds, bundle, tuple(keep), least, self._clock.now(),
        )  # fmt: skip
        where = f"first opening of the {NAMES[kind]}"
        try:
            opened = run_order(MODULE, order, seconds)
        except ChildEndedError as problem:
            raise _not_opened(problem, where, f"{memory >> 20} MiB and {seconds} s") from problem
        except EdgedError as problem:
            kinds = (ConfigError, RefusedError, UnavailableError)
            of_disk = isinstance(problem, StorageError) and not isinstance(problem, CorruptError)
            as_it_is = of_disk or isinstance(problem, kinds)
            raise (type(problem) if as_it_is else BundleError)(problem.line(), where=where) from problem
        log.info("opened_first", what=kind, bytes=size)
        return opened


def _not_opened(problem: ChildEndedError, where: str, limits: str) -> RefusedError:
    """Return the error of a child that was stopped, by the daemon or by its limits."""
    if problem.code is None:
        return RefusedError(problem.what, where=where, remedy="use a smaller model")
    if problem.code < 0:
        return RefusedError(
            f"its process {ending(problem.code)[0]}: {limits} of processor time are allowed",
            where=where,
            remedy="use a smaller model",
        )
    return RefusedError(problem.what, where=where)


def _files(source: Path) -> list[Path]:
    return [path for path in source.iterdir() if path.is_file()] if source.is_dir() else [source]
