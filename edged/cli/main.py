"""The commands. Thin: each reads its arguments, calls one function and prints what came of it.

`--json` puts one JSON object on stdout; everything else goes to stderr. Exit codes: 0 done,
1 failed, 2 usage or configuration, 3 refused, 4 not available here, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]

from edged import __version__
from edged.cli import output
from edged.cli.bundles import artifacts_app, keys_app, model_app
from edged.cli.ctl import ctl
from edged.cli.fleet import fleet_app
from edged.cli.ingest import ingest
from edged.cli.init import init
from edged.cli.options import AsJson, ConfigPath, Force, Stream, check_file, new_directory, print_json
from edged.cli.progress import ReplayProgress, TrainingProgress
from edged.cli.state import audit, backup, import_data, restore
from edged.cli.web import web_app
from edged.errors import ConfigError, EdgedError, from_system

app = typer.Typer(
    name="edged",
    help="Keeps a small ONNX model accurate on the device: learns from MQTT streams and swaps models without"
    " a gap.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Check, show or describe a configuration file.", no_args_is_help=True)
contract_app = typer.Typer(help="The public contract in machine-readable form.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(contract_app, name="contract")
app.add_typer(artifacts_app, name="artifacts")
app.add_typer(model_app, name="model")
app.add_typer(keys_app, name="keys")
app.add_typer(fleet_app, name="fleet")
app.add_typer(web_app, name="web")

VARIABLE = "_EDGED_COMPLETE"
Shell = Literal["bash", "zsh", "fish"]
INTERRUPTED = 130
START = "Start with `edged demo` (needs nothing) or `edged init` (listens to your broker).\n"

# Typer has click inside or beside it, depending on its version: the base of all its usage errors.
_UsageProblem: Any = typer.BadParameter.__mro__[2]


def prepare() -> None:
    """Let typer answer a shell that asks for completions; it does nothing at other times."""
    if VARIABLE in os.environ:
        completion_init()


def main() -> int:
    """Entry point: errors become one line and an exit code."""
    prepare()
    try:
        code = app(prog_name="edged", standalone_mode=False)
    except (EdgedError, OSError, ImportError, MemoryError) as problem:
        return _failed(problem)
    except typer.Exit as ended:
        code = ended.exit_code
    except _UsageProblem as problem:
        _show_usage(problem)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # some versions of typer return it for a KeyboardInterrupt
        sys.stderr.write("edged: interrupted\n")
    return code if isinstance(code, int) else 0


def _failed(problem: EdgedError | OSError | ImportError | MemoryError) -> int:
    """Print what has ended the command, and return its exit code; nobody reads on in a closed pipe."""
    if isinstance(problem, BrokenPipeError):
        sys.stderr.close()
        return 0
    error = problem if isinstance(problem, EdgedError) else from_system(problem)
    sys.stderr.writelines(f"edged: {line}\n" for line in error.lines())
    return error.exit_code


def _show_usage(problem: Any) -> None:
    """One line on what is wrong; a command without anything shows its help instead."""
    message = problem.format_message()
    if "\n" in message:
        problem.show()
        return
    context = getattr(problem, "ctx", None)
    where = context.command_path if context is not None else "edged"
    if not message:  # a group alone, whose help is shown already
        sys.stderr.write(START if where == "edged" else "")
        return
    sys.stderr.write(f"{where}: {message.rstrip('.')} (see `{where} --help`)\n")


def _load(path: Path, stream: str | None = None) -> Any:
    from edged import logs
    from edged.config import loader

    loaded = loader.load(path, stream=stream)
    logs.configure("warning")
    return loaded


def _version(value: bool) -> None:
    if value:
        sys.stdout.write(f"edged {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Options of every command."""


# ---- the daemon ----------------------------------------------------------------------------


@app.command()
def run(
    config: ConfigPath,
    allow_downgrade: Annotated[
        bool, Option("--allow-downgrade", help="accept, once, a signed bundle older than an earlier one")
    ] = False,
) -> None:
    """Run the daemon in the foreground, as systemd does."""
    if allow_downgrade:
        from edged.config.loader import load_all
        from edged.storage.models.trust import Trust

        for one in load_all(config):
            Trust(one.storage.dir).forget_versions()
    # glibc gives every thread an arena and keeps what was freed: megabytes on a device that idles for years.
    os.environ.setdefault("MALLOC_ARENA_MAX", "1")
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", "65536")
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", "131072")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Looking for plugins of pydantic, and for the interpreter's own list of places for time zones: 2 MB.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    os.environ.setdefault("PYTHONTZPATH", "/usr/share/zoneinfo")
    # Until the daemon handles it, Ctrl-C waits: between the two programs nobody would.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # A process of its own without the command line's libraries: they cost 20 MB for years.
    os.execv(sys.executable, [sys.executable, "-m", "edged.daemon", str(config)])  # noqa: S606


@app.command()
def status(
    config: ConfigPath,
    healthy: Annotated[
        bool, Option("--healthy", help="one line; exit code 1 unless the daemon runs without a problem")
    ] = False,
    stream: Stream = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of the daemon on this machine, running or stopped; one line per named stream."""
    from edged.config.loader import load_all

    configs = load_all(config) if stream is None else [_load(config, stream)]
    if healthy:
        _show_health(configs, as_json)
        return
    from edged.device.admin.status import status_of

    found = {one.name: status_of(one) for one in configs}
    if len(found) == 1:
        values = found[configs[0].name].to_json()
        print_json(values) if as_json else output.show_status(values)
    elif as_json:
        print_json({"streams": {name: one.to_json() for name, one in found.items()}})
    else:
        output.show_streams({name: one.line() for name, one in found.items()})


def _show_health(configs: Sequence[Any], as_json: bool) -> None:
    """Health of the only stream, or of the first of several that is not well."""
    from edged.device.admin.status import health

    found = [(config.name, *health(config)) for config in configs]
    name, well, line = min(found, key=lambda one: one[1])
    line = f"{name}: {line}" if len(found) > 1 and not well else line
    print_json({"healthy": well, "line": line}) if as_json else sys.stdout.write(f"{line}\n")
    if not well:
        raise typer.Exit(1)


@app.command()
def train(
    config: ConfigPath,
    resume: Annotated[bool, Option("--resume", help="only resume an interrupted run")] = False,
    stream: Stream = None,
    as_json: AsJson = False,
) -> None:
    """Train once in the foreground; the candidate goes through the gate."""
    from edged.device.admin.local_training import train_once

    with TrainingProgress() as progress:
        result = train_once(_load(config, stream), resume=resume, observer=progress)
    print_json(result.to_json()) if as_json else output.show_training(result)
    if not result.verdict.accepted:
        raise typer.Exit(3)


@app.command()
def evaluate(
    configs: Annotated[
        list[Path], Argument(metavar="CONFIG...", help="one configuration file, or several to compare")
    ],
    data: Annotated[Path, Option(help="recorded stream: .npz, .csv, .parquet, .jsonl, .lp or .db")],
    out: Annotated[
        Path | None, Option("-o", help="directory for report.html; of one configuration also its state")
    ] = None,
    labels_delay: Annotated[int, Option(min=0, help="samples until a label is known")] = 100,
    label_rate: Annotated[float, Option(min=0, max=1, help="share of labels that arrive")] = 1.0,
    label_requests: Annotated[
        bool, Option("--label-requests", help="edged requests that share of labels, instead of a random one")
    ] = False,
    pretrain: Annotated[
        int | None,
        Option(min=0, help="rows of pre-training; 10 % when absent; 0: none, the bundle's model starts"),
    ] = None,
    seed: Annotated[int, Option(min=0, help="seed of everything random")] = 0,
    stream: Stream = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Replay a recorded stream through the whole loop on a virtual clock, and score it prequentially.

    Several configurations are ranked, with intervals of their difference to the best.
    """
    from edged.workbench import evaluation
    from edged.workbench.evaluation.stream import LabelOptions

    options = LabelOptions(labels_delay, label_rate, seed, pretrain, label_requests)
    loaded = [_load(path, stream) for path in configs]
    several = len(configs) > 1
    written = evaluation.COMPARED if several else evaluation.WRITTEN
    replacing = nullcontext() if out is None else new_directory(out, *written, force=force)
    with replacing as folder, ReplayProgress() as progress:
        if several:
            named = list(zip(_names(configs), loaded, strict=True))
            comparison = evaluation.compare(named, data, options, folder, progress.update)
        else:
            report = evaluation.run(loaded[0], data, options, folder, progress.update)
    if as_json:
        print_json((comparison if several else report).to_json())
        return
    output.show_comparison(comparison) if several else output.show_evaluation(report)
    if out is not None:
        output.show_note(f"report: {out / 'report.html'}")


def _names(paths: Sequence[Path]) -> list[str]:
    """What the configurations are called: their file names, with their place where two are the same."""
    stems = [path.stem for path in paths]
    return [stem if stems.count(stem) == 1 else f"{stem}-{i + 1}" for i, stem in enumerate(stems)]


@app.command()
def demo(
    seconds: Annotated[int, Option(min=10, max=3600, help="how long it runs")] = 60,
    data: Annotated[Path | None, Option(help="replay this recorded stream instead")] = None,
    rate: Annotated[
        float | None, Option(min=1, help="maximum samples per second; 180, less on a slow board")
    ] = None,
    seed: Annotated[int, Option(min=0, help="seed of the simulated plant")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show edged at work without setup: broker, simulated plant, daemon and trainer, in the terminal."""
    from edged import logs
    from edged.workbench.demo.run import run_demo

    logs.configure("error")
    summary = run_demo(seconds=seconds, data=data, seed=seed, quiet=as_json, rate=rate)
    if as_json:
        print_json(summary.to_json())


@app.command()
def doctor(
    config: ConfigPath,
    seconds: Annotated[
        float, Option(min=0, max=3600, help="how long to listen for messages and labels")
    ] = 5.0,
    stream: Stream = None,
    as_json: AsJson = False,
) -> None:
    """Check packages, engine, bundle, disk, clock and broker, and the messages on the stream's topics.

    It listens with its own client ID, and reports how many messages become samples and why others do not.
    """
    from edged import logs
    from edged.cli.doctor import examine

    logs.configure("error")
    findings = examine(config, seconds, stream)
    print_json([f.to_json() for f in findings]) if as_json else output.show_findings(findings)
    if any(f.level == "error" for f in findings):
        raise typer.Exit(1)


@app.command()
def wipe(
    config: ConfigPath,
    samples: Annotated[bool, Option("--samples", help="samples with their labels")] = False,
    labels: Annotated[bool, Option("--labels", help="labels; the samples stay")] = False,
    checkpoints: Annotated[bool, Option("--checkpoints", help="checkpoints of training")] = False,
    models: Annotated[bool, Option("--models", help="all models but the bundle's own")] = False,
    everything: Annotated[bool, Option("--all", help="everything, including counts and history")] = False,
    yes: Annotated[bool, Option("--yes", help="do not ask")] = False,
    stream: Stream = None,
    as_json: AsJson = False,
) -> None:
    """Erase what the device has collected and learned, down to the bytes in its files."""
    from edged.device.admin import wiping

    asked = {
        "samples": samples, "labels": labels, "checkpoints": checkpoints, "models": models, "all": everything,
    }  # fmt: skip
    what = [name for name, wanted in asked.items() if wanted]
    if not what:
        remedy = "name --samples, --labels, --checkpoints, --models or --all"
        raise ConfigError("nothing to erase was named", where="wipe", remedy=remedy)
    loaded = _load(config, stream)
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError(
                "this cannot be undone, and there is no terminal for the question",
                where="wipe",
                remedy="add --yes",
            )
        typer.confirm(f"erase {', '.join(what)} in {loaded.storage.dir} permanently?", abort=True, err=True)
    gone = wiping.wipe(loaded, what).to_json()
    print_json(gone) if as_json else output.show_pairs("erased", gone)


app.command("init")(init)
app.command("audit")(audit)
app.command("backup")(backup)
app.command("restore")(restore)
app.command("import")(import_data)
app.command("ctl")(ctl)
app.command("ingest")(ingest)


@app.command("completion")
def completion(shell: Annotated[Shell, Argument(help="bash, zsh or fish")]) -> None:
    """Print the completion script of a shell, for example for `source <(edged completion bash)`."""
    sys.stdout.write(get_completion_script(prog_name="edged", complete_var=VARIABLE, shell=shell) + "\n")


# ---- models --------------------------------------------------------------------------------


@app.command(
    context_settings={"allow_extra_args": True},
    help="Show and change the model registry: CONFIG list | show V | rollback [V] | pin V | unpin | export V"
    " -o FILE.",
)
def models(
    config: ConfigPath,
    action: Annotated[str, Argument(help="list, show, rollback, pin, unpin or export")] = "list",
    version: Annotated[int | None, Argument(help="model version")] = None,
    out: Annotated[Path | None, Option("-o", help="file to export to")] = None,
    stream: Stream = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show and change the model registry."""
    from edged.device.admin.models import on_models

    if out is not None:
        check_file(out, force=force)
    answer = on_models(_load(config, stream), action, version, out)
    if isinstance(answer, list):
        print_json([one.to_json() for one in answer]) if as_json else output.show_models(answer)
    else:
        print_json(answer.to_json()) if as_json else output.show_pairs(f"models {action}", answer.to_json())


# ---- configuration -------------------------------------------------------------------------


@config_app.command("check")
def config_check(config: ConfigPath) -> None:
    """Validate a configuration; report each mistake with file, line, key and remedy."""
    from edged.config.loader import load_all

    load_all(config)
    sys.stdout.write(f"{config}: ok\n")


@config_app.command("show")
def config_show(config: ConfigPath, stream: Stream = None, as_json: AsJson = False) -> None:
    """Print the configuration with every default filled in."""
    import yaml

    values = _load(config, stream).model_dump(mode="json")
    print_json(values) if as_json else sys.stdout.write(yaml.safe_dump(values, sort_keys=False))


@config_app.command("schema")
def config_schema(_config: Annotated[Path | None, Argument(metavar="[CONFIG]", hidden=True)] = None) -> None:
    """Print the JSON schema of the configuration file."""
    from edged.config.loader import json_schema

    sys.stdout.write(json.dumps(json_schema(), indent=1) + "\n")


@contract_app.command("schemas")
def contract_schemas(
    out: Annotated[Path | None, Option("-o", help="write one file per topic into this directory")] = None,
    force: Force = False,
) -> None:
    """Print JSON schemas (draft 2020-12) of all MQTT messages."""
    from edged.domain.messages.sent import schemas

    if out is None:
        print_json(schemas())
        return
    with new_directory(out, *{f"{name}.json".partition("/")[0] for name in schemas()}, force=force) as folder:
        for name, schema in schemas().items():
            file = folder / f"{name}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(schema, indent=1) + "\n", encoding="utf-8")
    sys.stderr.write(f"{out}: {len(schemas())} schemas\n")


if __name__ == "__main__":
    sys.exit(main())
