"""How good a model is that learned an imported file, beside one that lived through the same rows.

    python benchmarks/history.py --data DIR [--streams occupancy,noaa_weather] [--seeds 3] [--json]

The first rows of a stream, up to each of four places, come to one device row after row (`edged evaluate`),
to another as a file (`edged import`, then `edged train`). Then both champions classify the next 2,000 rows,
and learn nothing from them; the networks alone. Accuracy in percent, mean of the places; the demand: at most
0.3 less.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from output import finish, options, pairs

from edged.config import loader
from edged.device.startup.bootstrap import with_context
from edged.domain.stream.temporal_context import TemporalContext
from edged.engines.inference import InferenceReader

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from output import Row

PLACES = (0.2, 0.4, 0.6, 0.8)
NEXT = 2000


def edged(*arguments: object) -> None:
    """Run a command of edged's; CalledProcessError if it fails."""
    subprocess.run(
        [sys.executable, "-m", "edged", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL
    )


def accuracy(state: Path, x: NDArray[np.float32], y: NDArray[np.int64]) -> float:
    """Share of the rows that the champion of a state directory classifies rightly."""
    version = json.loads((state / "models" / "champion").read_text(encoding="utf-8"))["version"]
    outputs = InferenceReader(threads=1).load(state / "models" / str(version) / "model.onnx").predict(x)
    found = outputs.argmax(1) if outputs.shape[1] > 1 else outputs[:, 0] > 0
    return float((found == y).mean())


def in_context(config: Path, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of one key as networks see them: beside the features what they differ by from earlier ones."""
    context = TemporalContext.of(with_context(loader.load(config, {})).stream.to_schema())
    return x if context is None else context.extend(["key"] * len(x), x)


def compared(x: NDArray[np.float32], y: NDArray[np.int64], rows: int, seed: int) -> tuple[float, float]:
    """Accuracy after `rows` rows: lived, and imported."""
    with tempfile.TemporaryDirectory(prefix="edged-history-") as folder:
        place = Path(folder)
        np.savez(place / "past.npz", X=x[:rows], y=y[:rows])
        for name in ("lived", "imported"):
            (place / f"{name}.yaml").write_text(
                f"device: {{id: {name}}}\n"
                f"stream: {{features: {x.shape[1]}, classes: {int(y.max()) + 1}}}\n"
                f"training: {{seed: {seed}}}\nstorage: {{dir: {place / name}}}\n",
                encoding="utf-8",
            )
        past = place / "past.npz"
        edged("evaluate", place / "lived.yaml", "--data", past, "-o", place / "lived", "--seed", seed)
        edged("import", place / "imported.yaml", past)
        edged("train", place / "imported.yaml")
        seen = in_context(place / "lived.yaml", x[: rows + NEXT])[rows:]
        lived, imported = (
            accuracy(place / name, seen, y[rows : rows + NEXT]) for name in ("lived", "imported")
        )
        return lived, imported


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory with the recorded streams")
    parser.add_argument("--streams", default="occupancy,noaa_weather,elec2,hapt_feat", help="which, by name")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds")
    args = parser.parse_args()
    rows: list[Row] = []
    for name in args.streams.split(","):
        with np.load(args.data / f"{name}.npz", allow_pickle=False) as data:
            x, y = data["X"].astype(np.float32), data["y"].astype(np.int64)
        for seed in range(args.seeds):
            pairs_of = [compared(x, y, int(part * (len(x) - NEXT)), seed) for part in PLACES]
            lived, imported = 100 * np.mean(pairs_of, axis=0)
            rows.append(
                {
                    "stream": name,
                    "seed": seed,
                    "lived": round(float(lived), 2),
                    "imported": round(float(imported), 2),
                    "less": round(float(lived - imported), 2),
                }
            )
            print(rows[-1], file=sys.stderr)
    finish("history", rows, args, pairs)


if __name__ == "__main__":
    main()
