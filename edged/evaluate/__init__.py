"""`edged evaluate`: a recorded stream through the whole loop, on a virtual clock.

The buffer, the triggers, the trainer process, the gate, the registry and the serving code are the
daemon's own; only the broker and the threads are left out, so that the same seed gives the same
result. Prequential: every sample is predicted by the champion of that moment before its label can
be seen. Training takes no virtual time: a candidate is ready at the sample that triggered it.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.errors import ConfigError
from edged.evaluate.replay import Replay
from edged.evaluate.score import report
from edged.evaluate.stream import Options, Stream, shape_stream
from edged.storage.recorded import read_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.config import Config

__all__ = ["Options", "Replay", "Stream", "report", "run", "shape_stream"]


def run(
    config: Config,
    data: Path,
    options: Options,
    out: Path | None = None,
    on_progress: Callable[[int, int, int], None] = lambda *_: None,
) -> dict[str, Any]:
    """Evaluate and return the report; `out` keeps the state directory, else it is temporary.

    Raises
    ------
    EdgedError
        One clear line on anything that stops it.
    """
    started = time.monotonic()
    if out is not None and (out / "samples.db").exists():
        raise ConfigError("holds an evaluation already", where=str(out), remedy="name a new directory")
    stream = shape_stream(
        read_stream(data, features=config.stream.names, label=config.stream.label), config, options
    )
    with tempfile.TemporaryDirectory(prefix="edged-evaluate-") as temporary:
        replay = Replay(config, stream, options, out or Path(temporary), on_progress)
        replay.run()
        figures = report(replay)
    usage = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return figures | {"seconds": round(time.monotonic() - started, 3), "peak_rss_mb": round(usage / 1024, 1)}
