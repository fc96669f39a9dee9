"""What the microseconds of the portable engine's step consist of, one row after the other.

The step graph is cut off behind its loss, its gradients, their square sum and its moments. These graphs, a
call of the runtime that computes nothing, and the engine's own step take turns; a row is what it takes more
than the row above. Times are the tenth percentile of the turns: other programs only ever add to them.

`python benchmarks/step_parts.py [--model mlp] [--batch N] [--seconds S] [--json] [--out FILE]`
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from models import MODELS
from onnx import helper
from output import finish, options

from edged.bundles.build import build
from edged.bundles.step_graph.builder import as_model
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.portable.bound_graph import DTYPES, bind
from edged.engines.runtime import ort

if TYPE_CHECKING:
    from collections.abc import Sequence

STEPS, WARM = 30, 1000

Call = Callable[[], object]


def cut(graph: onnx.GraphProto, wanted: Sequence[str]) -> onnx.ModelProto:
    """The graph with all of its inputs, as far as the wanted tensors need its nodes."""
    need, nodes = set(wanted), list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if need.intersection(node.output):
            need.update(node.input)
            nodes.insert(0, node)
    nodes = nodes or [helper.make_node("Neg", [graph.input[0].name], wanted)]
    outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in wanted]
    tensors = [tensor for tensor in graph.initializer if tensor.name in need]
    return as_model(helper.make_graph(nodes, "part", graph.input, outputs, tensors))


def caller(model: onnx.ModelProto, batch: int) -> Call:
    """A call of a graph on memory that it is bound to, as the engine makes it."""
    session, alive = ort.session(model.SerializeToString(), in_order=True), list[Any]()
    shapes = {
        item.name: [n if isinstance(n, int) else batch for n in item.shape] for item in session.get_inputs()
    }
    inputs = {item.name: np.full(shapes[item.name], 0.1, DTYPES[item.type]) for item in session.get_inputs()}
    outputs = dict(zip([item.name for item in session.get_outputs()], session.run(None, inputs), strict=True))
    binding = bind(session, inputs, outputs, alive)
    return lambda: (session.run_with_iobinding(binding), alive)


def calls(name: str, batch: int, folder: Path) -> dict[str, Call]:
    """What is timed, by what it does more than the one before."""
    model = MODELS[name]
    bundle = build(
        model.make(), folder, loss="cross_entropy", standardise=model.statistics, engine="portable"
    )
    graph = onnx.load(str(folder / "step_model.onnx")).graph
    outputs = [value.name for value in graph.output]
    gradients = [node.input[0] for node in graph.node if node.op_type == "ReduceSumSquare"]
    wanted = {
        "a call of the runtime": ["nothing"],
        "forward pass and loss": outputs[:1],
        "gradients": [*outputs[:1], *gradients],
        "their square sum": [*outputs[:2], *gradients],
        "moments": [name for name in outputs if not name.endswith("new_value")],
        "parameters": outputs,
    }
    engine = open_engine("portable", bundle)
    engine.begin(LearningRate(1e-3))
    data = cycle(zip(*model.batches(batch, 50), strict=True))
    made = {what: caller(cut(graph, names), batch) for what, names in wanted.items()}
    return made | {"the engine around it": lambda: engine.step(*next(data))}


def timed(call: Call, steps: int) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        call()
    return (time.perf_counter() - began) / steps * 1e6


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--model", choices=list(MODELS), default="mlp")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = calls(args.model, args.batch, Path(folder) / "bundle")
        times: dict[str, list[float]] = {what: [timed(call, WARM)] for what, call in made.items()}
        end = time.monotonic() + args.seconds
        while time.monotonic() < end:
            for what, call in made.items():
                times[what].append(timed(call, STEPS))
    whole = {what: float(np.percentile(found, 10)) for what, found in times.items()}
    before = [0.0, *whole.values()]
    rows = [
        {"part": what, "us": round(us - less, 1), "together_us": round(us, 1)}
        for (what, us), less in zip(whole.items(), before[:-1], strict=True)
    ]
    finish("step_parts", rows, args, onnxruntime=ort.onnxruntime.__version__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
