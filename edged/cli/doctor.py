"""`edged doctor`: everything that must be right before a device is left alone."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from edged import logs
from edged.config import loader
from edged.domain.model_files import INT8
from edged.engines import candidates, open_engine
from edged.engines.inference import InferenceModel
from edged.engines.native import api
from edged.engines.onnx.base_model import BaseModel
from edged.errors import ConfigError, EdgedError
from edged.host.cpu_affinity import for_training, usable
from edged.host.time_sync import synchronised
from edged.host.vitals import VitalsReader
from edged.mqtt.client.session import Session
from edged.mqtt.codecs import sample_codec
from edged.mqtt.sparkplug.payload import SparkplugWire
from edged.signing import Keys
from edged.storage.files.atomic import DirectoryLock
from edged.storage.models.bundle_archive import as_folder
from edged.storage.models.signatures import open_bundle
from edged.storage.samples.log import SampleLog
from edged.trainer.engine_selection import choose

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from edged.config import Config, MqttConfig
    from edged.storage.models.bundles import Bundle

Level = Literal["ok", "warning", "error"]

EARLIEST_YEAR = 2026
CONNECT_SECONDS = 8.0


@dataclass(frozen=True)
class CheckResult:
    """One line of the examination."""

    what: str
    level: Level
    result: str
    remedy: str = ""
    figures: Mapping[str, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON values that `--json` prints; `figures` only if something was measured."""
        values = asdict(self)
        return values if self.figures is not None else {k: v for k, v in values.items() if k != "figures"}


def examine(path: Path) -> list[CheckResult]:
    """Look at everything; nothing is changed but a file written to and removed from the state directory."""
    try:
        config = loader.load(path)
    except EdgedError as problem:
        return [CheckResult("configuration", "error", problem.line())]
    findings = [CheckResult("configuration", "ok", str(path))]
    for look in (_runtime, _formats, _web, _keys, _bundle, _state, _clock, _board, _broker):
        findings.extend(look(config))
    return findings


def _runtime(_: Config) -> Iterator[CheckResult]:
    found = {
        name: importlib.metadata.version(name)
        for name in ("onnxruntime", "onnxruntime-training", "onnxruntime-training-cpu")
        if _installed(name)
    }
    if len(found) > 1:
        yield CheckResult(
            "onnxruntime",
            "error",
            f"several builds share one package: {', '.join(found)}",
            "keep one: pip uninstall the others, then reinstall the one to keep",
        )
    elif not found:
        yield CheckResult("onnxruntime", "error", "not installed", "pip install onnxruntime")
    else:
        name, version = next(iter(found.items()))
        yield CheckResult("onnxruntime", "ok", f"{name} {version}")


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _formats(config: Config) -> Iterator[CheckResult]:
    """Packages that only some formats of messages need."""
    codec, node = config.stream.codec, config.sparkplug is not None
    if codec == "json" and not node:
        return
    try:
        sample_codec(config.stream)
        if node:
            SparkplugWire("sparkplug")
    except ConfigError as problem:
        yield CheckResult("formats", "error", f"{problem.where}: {problem.what}", problem.remedy)
        return
    yield CheckResult(
        "formats", "ok", f"reads {codec}" + (", is an edge node of Sparkplug B" if node else "")
    )


def _keys(config: Config) -> Iterator[CheckResult]:
    """Whether signatures can be checked, where keys are named."""
    files = [*config.commands.keys, *config.model.keys]
    if not files:
        return
    try:
        Keys(files)
    except EdgedError as problem:
        yield CheckResult("keys", "error", problem.line())
        return
    yield CheckResult("keys", "ok", f"{len(files)} public keys can be used")


def _web(config: Config) -> Iterator[CheckResult]:
    """Packages, tokens and certificate of the section `web`."""
    web = config.web
    if web is None:
        return
    from edged.device.web.front import require_packages
    from edged.device.web.http.authentication import Tokens
    from edged.device.web.http.sockets import tls_context

    try:
        require_packages()
        tokens = Tokens(web.tokens.given)
        if web.tls is not None:
            tls_context(web.tls)
    except EdgedError as problem:
        yield CheckResult("http", "error", f"{problem.where}: {problem.what}", problem.remedy)
    else:
        places = " and ".join(str(place) for place in (web.listen, web.unix_socket) if place is not None)
        yield CheckResult(
            "http", "ok", f"listens on {places}; tokens: {', '.join(sorted(tokens.scopes)) or 'none'}"
        )


def _bundle(config: Config) -> Iterator[CheckResult]:
    path = config.model.bundle or config.storage.dir / "bundle"
    if config.model.bundle is None and not (path / "bundle.json").exists():
        yield CheckResult("bundle", "ok", "none named: the standard network is built at the first start")
        yield _builder()
        return
    try:
        with as_folder(path) as folder:
            bundle = open_bundle(folder, config.model.keys)
            bundle.check_schema(config.stream.to_schema())
            bundle.check_form(config.serving.quantise)
            for served in _served(config, bundle):
                InferenceModel(served, providers=config.serving.provider).warm_up()
            operators = list(_operators(config, bundle))
            engine = _engine(config, bundle)
    except EdgedError as problem:
        remedy = "" if isinstance(problem, ConfigError) else "build it again with `edged artifacts build`"
        yield CheckResult("bundle", "error", problem.line(), remedy)
        return
    yield CheckResult("bundle", "ok", f"{path}: whole, fits the stream, serves")
    yield from operators
    yield engine


def _served(config: Config, bundle: Bundle) -> list[Path]:
    """The base model in every form that models may be served in here."""
    quantised = BaseModel.of_form(bundle, INT8) if config.serving.quantise == INT8 else None
    return [bundle.inference_model, *([quantised.path] if quantised else [])]


def _builder() -> CheckResult:
    """Which engine will train the standard network, which is built at the first start."""
    both = "native is installed here, and portable too: timed at the first run"
    return CheckResult("engine", "ok", both if api.available() else "portable trains the standard network")


def _operators(config: Config, bundle: Bundle) -> Iterator[CheckResult]:
    """Whether this onnxruntime has every operator of the graphs: each engine that could train is opened."""
    training, failed, names = config.training, dict[str, str](), candidates(bundle, config.training.provider)
    for name in names:
        try:
            open_engine(name, bundle, training.threads, providers=training.provider)
        except EdgedError as problem:
            failed[name] = problem.line()
    if names and not failed:
        yield CheckResult("operators", "ok", f"every operator that {' and '.join(names)} needs is there")
    if failed:
        left = [name for name in names if name not in failed]
        level: Level = "error" if not left or training.engine in failed else "warning"
        remedy = f"set training.engine: {left[0]}" if left else "build the bundle for this onnxruntime"
        yield CheckResult(
            "operators", level, "; ".join(f"{name}: {why}" for name, why in failed.items()), remedy
        )


def _engine(config: Config, bundle: Bundle) -> CheckResult:
    """Which engine trains here and why; where both could, they are timed unless that was done before."""
    training, notes = config.training, list[str]()
    try:
        chosen = choose(training, bundle, config.storage.dir, remember=False, note=notes.append)
        open_engine(chosen.engine, bundle, training.threads, providers=training.provider)
    except EdgedError as problem:
        return CheckResult("engine", "error", problem.line())
    if chosen.timing is None:
        untimed = notes[-1] if notes else ""
        return CheckResult("engine", "warning" if untimed else "ok", chosen.line(), untimed)
    figures = {f"{name}_us": round(us, 1) for name, us in chosen.timing.us.items()}
    return CheckResult("engine", "ok", chosen.line(), figures=figures | {"batch": chosen.timing.batch})


def _state(config: Config) -> Iterator[CheckResult]:
    folder = config.storage.dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as probe:
            started = time.perf_counter()
            probe.write(b"edged")
            probe.flush()
            os.fsync(probe.fileno())
            sync = time.perf_counter() - started
    except OSError as problem:
        yield CheckResult(
            "state directory",
            "error",
            f"{folder}: {problem.strerror}",
            "make it writable for this user, or set storage.dir",
        )
        return
    level: Level = "ok" if sync < 0.25 else "warning"
    yield CheckResult(
        "state directory",
        level,
        f"{folder}: writable, one fsync takes {sync * 1e3:.1f} ms",
        "" if level == "ok" else "a slow card delays acknowledgements; raise storage.commit_delay",
    )
    free = shutil.disk_usage(folder).free
    if free < config.storage.max_bytes:
        yield CheckResult(
            "disk",
            "warning",
            f"{free / 1024**2:.0f} MiB free, less than storage.max_bytes",
            "lower storage.max_bytes or free some space",
        )
    else:
        yield CheckResult("disk", "ok", f"{free / 1024**2:.0f} MiB free")
    if (folder / "samples.db").exists():
        yield _log(config)
    pid = DirectoryLock.holder(folder)
    if pid is not None:
        yield CheckResult("daemon", "ok", f"running as process {pid}")


def _log(config: Config) -> CheckResult:
    """Whether the sample log that is there was written for this stream."""
    try:
        log = SampleLog.open(config.storage.dir / "samples.db", config.stream.to_schema(), readonly=True)
    except EdgedError as problem:
        return CheckResult("sample log", "error", problem.line())
    rows = log.counters().rows
    log.close()
    return CheckResult("sample log", "ok", f"{rows:,} samples, fits the stream")


def _clock(_: Config) -> Iterator[CheckResult]:
    year = time.gmtime().tm_year
    if year < EARLIEST_YEAR:
        yield CheckResult(
            "clock", "error", f"the year is {year}", "set the clock; enable systemd-timesyncd or chrony"
        )
        return
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    told = {True: ", set by a time server", False: ", which no time server has set", None: ""}
    yield CheckResult("clock", "ok", now + told[synchronised()])


def _board(config: Config) -> Iterator[CheckResult]:
    """Heat, power and processors, as far as this machine tells."""
    host = VitalsReader(config.storage.dir).board()
    named = {"throttled": "throttled", "under_voltage": "too little voltage", "on_battery": "on battery"}
    said = [f"{name}: {'yes' if host[key] else 'no'}" for key, name in named.items() if host[key] is not None]
    if host["temperature_c"] is not None:
        said.insert(0, f"{host['temperature_c']:.0f} °C")
    if host["power_mode"] is not None:
        said.append(f"power mode {host['power_mode']}")
    trouble = host["throttled"] or host["under_voltage"]
    remedy = "cool it, and see to its power supply: training waits meanwhile" if trouble else ""
    if said:
        yield CheckResult("board", "warning" if trouble else "ok", ", ".join(said), remedy)
    cpus, training = usable(), config.training
    kept = for_training(training.affinity, training.threads)
    where = "" if kept is None else f", training keeps to {', '.join(map(str, sorted(kept)))}"
    yield CheckResult("processors", "ok", f"{len(cpus)} to use{where}")


def _broker(config: Config) -> Iterator[CheckResult]:
    mqtt = config.mqtt
    where = mqtt.host if mqtt.host.startswith("/") else f"{mqtt.host}:{mqtt.port}"
    try:
        _knock(mqtt)
    except OSError as problem:
        yield CheckResult(
            "broker",
            "error",
            f"{where}: {problem.strerror or problem}",
            "start the broker or correct mqtt.host and mqtt.port",
        )
        return
    pid = DirectoryLock.holder(config.storage.dir)
    if pid is not None:
        # A broker may go by the user's name alone: a second connection would end the daemon's session there.
        yield CheckResult(
            "broker", "ok", f"{where} listens; `edged status` tells whether process {pid} is connected"
        )
    elif _accepted(config):
        yield CheckResult("broker", "ok", f"{where} takes our connection")
    else:
        yield CheckResult(
            "broker",
            "error",
            f"{where} answers, but does not accept us",
            "see the line above, and mqtt.username, password_file, tls and protocol",
        )


def _knock(mqtt: MqttConfig) -> None:
    """Connect and hang up; OSError where nobody listens."""
    if not mqtt.host.startswith("/"):
        socket.create_connection((mqtt.host, mqtt.port), timeout=5).close()
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        probe.connect(mqtt.host)


def _accepted(config: Config) -> bool:
    """Whether the broker lets us in; under a name of our own, and no session is left behind."""
    logs.configure("warning", "auto")
    session = Session(
        config.mqtt.model_copy(update={"session_expiry": 0.0}),
        client_id=f"edged-doctor-{os.getpid()}",
    )
    session.start()
    accepted = session.wait_ready(CONNECT_SECONDS)
    session.stop()
    return accepted
