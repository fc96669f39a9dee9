"""`python -m edged.trainer.first_opening`: opens a bundle or model for the first time, within limits.

Models are programs: a few bytes can ask for terabytes, or never end. So whatever comes from elsewhere is
verified, loaded and run here first: this process may run out of memory or time, and nothing else does. The
daemon and its trainer open only what was opened here.

Carries out the `FirstOpening` on stdin, see `edged.domain.child_orders`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from edged.domain.child_orders import FirstOpening, Opened
from edged.domain.protocols import LearningRate
from edged.engines.onnx.computed_sizes import computed_size
from edged.errors import EdgedError, RefusedError
from edged.host.child_process import carry_out
from edged.host.limits import confine, die_with_parent
from edged.signing import key_id
from edged.storage.models.bundle_archive import InstalledBundles, unpacked
from edged.storage.models.bundles import Bundle
from edged.storage.models.external_data import operators
from edged.storage.models.signatures import open_bundle, open_signed, refuse_stale

ENDLESS = ("Loop", "SequenceMap")
"""Operators that run as often as a number in the model says; edged's own graphs have none of them."""
NO_MEMORY = ("bad_alloc", "Failed to allocate")  # how onnxruntime says it
MOST_ROWS, MOST_VALUES = 1024, 1 << 20  # of a batch that a model is tried with


def main() -> int:
    """Carry out the order; the exit code."""
    return carry_out((FirstOpening,), _open_confined)


def _open_confined(order: FirstOpening) -> Opened:
    """Open what is ordered within the limits; whatever a hostile file causes becomes an EdgedError."""
    try:
        die_with_parent(order.parent)
        confine(order.memory, order.seconds)
        return open_first(order)
    except Exception as problem:
        if isinstance(problem, MemoryError) or any(text in str(problem) for text in NO_MEMORY):
            raise RefusedError(
                f"needs more than {order.memory >> 20} MiB of memory",
                remedy="use a smaller model",
            ) from problem
        if isinstance(problem, EdgedError):
            raise
        line = " ".join(f"{type(problem).__name__}: {problem}".split())[:240]
        raise RefusedError(line) from problem


def open_first(order: FirstOpening) -> Opened:
    """Verify and open what is ordered.

    Raises EdgedError when it is not usable on this device.
    """
    keys = order.keys
    if order.kind == "model":
        _read_model(order)
        return Opened()

    version, signer = 0, ""

    def check(bundle: Bundle) -> None:
        nonlocal version, signer
        if keys:
            signed, key = open_signed(bundle.path, keys)
            refuse_stale(signed, order.least_version, order.now)
            version, signer = signed.version or 0, key_id(key)
        bundle.check_schema(order.schema)
        run(bundle, order)

    if order.kind == "bundle":
        installed = InstalledBundles(order.state)
        bundle = installed.install(order.source, order.max_bytes, check, set(order.keep))
    else:
        path = order.source
        bundle = open_bundle(unpacked(path, order.state, keys) if path.is_file() else path, keys)
        check(bundle)
    return Opened(bundle.fingerprint, version, signer)


def _read_model(order: FirstOpening) -> None:
    from edged.engines.onnx.fields import parameters_within

    bundle = open_bundle(order.bundle or order.state / "bundle", order.keys)
    parameters_within(order.source.read_bytes(), (*bundle.trainable, *bundle.frozen))


def run(bundle: Bundle, order: FirstOpening) -> None:
    """Load every graph that the daemon or its trainer may load, and run it on random rows.

    Raises RefusedError when a graph may run or grow without end; EdgedError when one cannot be loaded or run.
    """
    for name in bundle.files:
        _refuse_unbounded(bundle.path / name)
    # Imported only now: what is refused before does not need onnxruntime.
    from edged.engines import open_engine, random_rows
    from edged.engines.inference import InferenceModel

    rows = (1, max(1, min(MOST_ROWS, MOST_VALUES // bundle.input.width)))
    InferenceModel(bundle.inference_model).warm_up(rows)
    engine = open_engine(bundle.engine, bundle)
    x, y = random_rows(bundle, engine, order.batch)
    engine.begin(LearningRate(1e-6))
    engine.evaluate(x, y)
    engine.step(x, y)
    with tempfile.TemporaryDirectory(dir=order.state, prefix=".staging-") as folder:
        exported = Path(folder) / bundle.inference_model.name
        engine.export(exported)
        InferenceModel(exported).warm_up(rows)


def _refuse_unbounded(path: Path) -> None:
    """Refuse a graph with an operator of `ENDLESS`, or one whose size depends on values; other files pass."""
    if path.suffix != ".onnx":
        return
    found = set(operators(path)).intersection(ENDLESS)
    computed = computed_size(path)
    if computed is not None:
        raise RefusedError(
            f"values of a sample say how large the output of the operator {computed} is",
            where=str(path),
            remedy="give it a fixed size, or one that follows from shapes",
        )
    if found:
        raise RefusedError(
            f"the operator {min(found)} may run for ever",
            where=str(path),
            remedy="export the layer as LSTM, GRU or RNN",
        )


if __name__ == "__main__":
    sys.exit(main())
