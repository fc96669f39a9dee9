"""Makes the models in this directory with PyTorch: `python make.py`, with torch, onnx, onnxscript installed.

Each `NAME.onnx` comes with `NAME.npz`: inputs `x` and PyTorch's own outputs `y` for them.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx

# Not imported the usual way: torch is no dependency, and has no types where it is not installed.
torch: Any = importlib.import_module("torch")
nn = torch.nn

HERE = Path(__file__).parent
NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), (4,)),
    "norm": (lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)), (4,)),
    "window": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(32, 3)
        ),
        (2, 16),
    ),
    "batchnorm": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
        (4,),
    ),
    "pooled": (
        lambda: nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.AvgPool1d(2), nn.Flatten(), nn.Linear(32, 3)),
        (2, 16),
    ),
}


def export(name: str, module: Any, x: Any, *, dynamo: bool, dynamic: bool) -> None:
    """Write one model with both of its files."""
    path = HERE / f"{name}.onnx"
    if dynamo:
        shapes = ({0: torch.export.Dim("rows")},) if dynamic else None
        torch.onnx.export(module, (x,), str(path), dynamo=True, dynamic_shapes=shapes)
    else:
        axes = {"input": {0: "rows"}, "output": {0: "rows"}} if dynamic else None
        names = {"input_names": ["input"], "output_names": ["output"]}
        torch.onnx.export(module, x, str(path), dynamo=False, opset_version=17, dynamic_axes=axes, **names)
    model = onnx.load(str(path))
    for node in model.graph.node:
        # Where the code lay that made a node is of no use here.
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save(model, str(path))
    path.with_suffix(".onnx.data").unlink(missing_ok=True)
    np.savez(path.with_suffix(".npz"), x=x.numpy(), y=module(x).detach().numpy())


def main() -> None:
    """Make them all."""
    torch.manual_seed(0)
    for name, (make, row) in NETWORKS.items():
        module, x = make().eval(), torch.randn(2, *row)
        export(f"{name}_classic", module, x, dynamo=False, dynamic=True)
        if name in ("mlp", "norm", "window"):
            export(f"{name}_dynamo", module, x, dynamo=True, dynamic=True)
        if name == "mlp":
            export(f"{name}_fixed", module, x, dynamo=False, dynamic=False)


if __name__ == "__main__":
    main()
