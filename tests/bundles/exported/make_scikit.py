"""Makes `scikit_NAME.onnx` with scikit-learn 1.9 and skl2onnx 1.20, which have to be installed to run it.

`scikit_NAME.npz` holds rows `x`, their labels or targets `t`, and scikit-learn's own probabilities or values
`y` for them.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

# Not imported the usual way: they are no dependencies, and have no types.
network: Any = importlib.import_module("sklearn.neural_network")
scaling: Any = importlib.import_module("sklearn.preprocessing")
pipeline: Any = importlib.import_module("sklearn.pipeline")
skl2onnx: Any = importlib.import_module("skl2onnx")

HERE = Path(__file__).parent
# The newest that onnxruntime-training runs: what is built is compared with the file.
OPSET = 18


def main() -> None:
    """Make them all."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((200, 3)) * [1, 40, 900] + [5, 400, -3000]).astype(np.float32)
    normal = (x - x.mean(0)) / x.std(0)
    score = normal @ rng.standard_normal((3, 3))
    options = {"hidden_layer_sizes": (5,), "max_iter": 100, "random_state": 0}
    classifier, regressor = network.MLPClassifier(**options), network.MLPRegressor(**options)
    scaled = pipeline.make_pipeline
    models = {
        "named": (scaled(scaling.StandardScaler(), classifier), np.array(["idle", "normal", "worn"])),
        "numbered": (scaled(scaling.MinMaxScaler(), classifier), np.array([5, 6, 7])),
        "binary": (scaled(scaling.StandardScaler(), classifier), np.array([0, 1])),
        "values": (scaled(scaling.StandardScaler(), regressor), None),
        "targets": (scaled(scaling.StandardScaler(), regressor), None),
    }
    for name, (model, classes) in models.items():
        if classes is None:
            t = score[:, 0] if name == "values" else score[:, :2]
            y = model.fit(x, t).predict(x)
        else:
            t = score[:, : len(classes)].argmax(axis=1)
            y = model.fit(x, classes[t]).predict_proba(x)
        made = skl2onnx.to_onnx(model, x[:1], target_opset={"": OPSET, "ai.onnx.ml": 3})
        (HERE / f"scikit_{name}.onnx").write_bytes(made.SerializeToString())
        np.savez_compressed(HERE / f"scikit_{name}.npz", x=x[:16], t=t[:16], y=y[:16].astype(np.float32))


if __name__ == "__main__":
    main()
