"""The zoo: a small network of every kind that is to be trained, once for quick tests and once full size.

`ZOO` holds the entries by name. Inputs are flat rows `(n, d)` float32, as engines take them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.graph.templates import autoencoder, mlp
from edged.bundles.source.axes import fix_sequence
from tests.building import build
from tests.networks import INPUT, OUTPUT, Network, in_precision

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from edged.storage.models.bundles import Bundle

    Batch = tuple[NDArray[np.float32], NDArray[np.generic]]

BOTH = ("native", "portable")
# What the native engine does wrong or cannot do: see edged/bundles/preflight.py.
PORTABLE = ("portable",)


@dataclass(frozen=True)
class Entry:
    """One kind of network.

    Attributes
    ----------
    name
        Its name in tests and tables.
    what
        What it is, for tables.
    make
        The model; with argument True the tiny one.
    loss
        What it is trained with.
    engines
        Engines that must train it.
    freeze
        Globs over parameter names that are not trained.
    tokens
        Inputs are whole numbers below this; with 0 they are any numbers.
    modes
        A training step sees another network than evaluation: batch statistics, or units left out.
    """

    name: str
    what: str
    make: Callable[[bool], onnx.ModelProto]
    loss: str = "cross_entropy"
    engines: tuple[str, ...] = BOTH
    freeze: tuple[str, ...] = ()
    tokens: int = 0
    modes: bool = False

    def bundle(
        self, out: Path, *, tiny: bool = True, optimizer: str = "adamw", engine: str = "portable"
    ) -> Bundle:
        """The bundle for an engine, at `out`."""
        return build(
            self.make(tiny), out, loss=self.loss, optimizer=optimizer, freeze=self.freeze, engine=engine
        )

    def batch(self, bundle: Bundle, rows: int, seed: int = 0) -> Batch:
        """Rows and labels of a task that can be learned, the same one for every seed."""
        rng = np.random.default_rng(seed)
        width, outputs = bundle.input.width, bundle.output.width
        if self.loss != "cross_entropy":
            x = _noise(rng, rows, width)
            return x, x if outputs == width else np.tanh(x @ _noise(np.random.default_rng(1), width, outputs))
        y = rng.integers(0, outputs, rows)
        if self.tokens:
            # Two of three tokens belong to the class.
            own = y[:, None] + outputs * rng.integers(0, self.tokens // outputs, (rows, width))
            anything = rng.integers(0, self.tokens, (rows, width))
            return np.where(rng.random((rows, width)) < 0.67, own, anything).astype(np.float32), y
        return _noise(np.random.default_rng(1), outputs, width)[y] + _noise(rng, rows, width), y


def supported(engine: str) -> list[Entry]:
    """The entries that an engine must train."""
    return [entry for entry in ZOO.values() if engine in entry.engines]


def _noise(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape).astype(np.float32)


# ---- dense -------------------------------------------------------------------------------------


def activated(model: onnx.ModelProto, operator: str) -> onnx.ModelProto:
    """Put another activation into a network in place of each Relu."""
    for node in model.graph.node:
        node.op_type = operator if node.op_type == "Relu" else node.op_type
    return model


def _mlp(tiny: bool) -> onnx.ModelProto:
    return mlp(5, 3, (8, 16)) if tiny else mlp(64, 6, (128, 64))


def _mlp_tanh(tiny: bool) -> onnx.ModelProto:
    return activated(mlp(5, 3, (8,) if tiny else (64, 64)), "Tanh")


def _autoencoder(tiny: bool) -> onnx.ModelProto:
    return autoencoder(6, (8,), 3) if tiny else autoencoder(32, (64, 32), 8)


def _mlp_residual(tiny: bool) -> onnx.ModelProto:
    """Two blocks with a shortcut, then the first layer's values joined to the last one's."""
    features, width = (5, 8) if tiny else (32, 128)
    net = Network(features)
    first = net.relu(net.dense(INPUT, "fc1", features, width))
    inner = first
    for layer in ("fc2", "fc3"):
        inner = net.add("Add", [net.relu(net.dense(inner, layer, width, width)), inner])
    joined = net.add("Concat", [first, inner], axis=1)
    net.dense(joined, "head", 2 * width, 3, OUTPUT)
    return net.model("mlp_residual", 3)


def _mlp_smooth(tiny: bool) -> onnx.ModelProto:
    """SiLU and LeakyRelu."""
    features, width = (5, 8) if tiny else (32, 128)
    net = Network(features)
    x = net.silu(net.dense(INPUT, "fc1", features, width))
    x = net.add("LeakyRelu", [net.dense(x, "fc2", width, width)], alpha=0.1)
    net.dense(x, "head", width, 3, OUTPUT)
    return net.model("mlp_smooth", 3)


def _mlp_dropout(tiny: bool) -> onnx.ModelProto:
    features, width = (5, 16) if tiny else (64, 128)
    net = Network(features)
    x = net.dropout(net.relu(net.dense(INPUT, "fc1", features, width)), 0.25)
    x = net.dropout(net.relu(net.dense(x, "fc2", width, width)), 0.25)
    net.dense(x, "head", width, 3, OUTPUT)
    return net.model("mlp_dropout", 3)


# ---- convolutional -----------------------------------------------------------------------------


def _cnn1d(tiny: bool) -> onnx.ModelProto:
    """Windows of 9 channels and 128 values, 98,000 parameters; tiny: 3 and 12."""
    channels, length, first, second, inner = (3, 12, 4, 6, 8) if tiny else (9, 128, 32, 64, 42)
    net = Network(channels, length)
    x = net.pool(net.relu(net.conv(INPUT, "conv1", (channels, first), [5])), "MaxPool", 1)
    x = net.pool(net.relu(net.conv(x, "conv2", (first, second), [5])), "MaxPool", 1)
    flat = second * (length // 4)
    x = net.relu(net.dense(net.add("Flatten", [x]), "fc", flat, inner))
    net.dense(x, "head", inner, 6, OUTPUT)
    return net.model("cnn1d", 6)


def _cnn2d(tiny: bool) -> onnx.ModelProto:
    """Pictures of 28×28, 106,000 parameters; tiny: 8×8."""
    size, first, second, inner = (8, 3, 4, 8) if tiny else (28, 16, 32, 64)
    net = Network(1, size, size)
    x = net.pool(net.relu(net.conv(INPUT, "conv1", (1, first), [3, 3])), "MaxPool", 2)
    x = net.pool(net.relu(net.conv(x, "conv2", (first, second), [3, 3])), "MaxPool", 2)
    flat = second * (size // 4) ** 2
    x = net.relu(net.dense(net.add("Flatten", [x]), "fc", flat, inner))
    net.dense(x, "head", inner, 10, OUTPUT)
    return net.model("cnn2d", 10)


def _depthwise(tiny: bool) -> onnx.ModelProto:
    """A depthwise-separable block with ReLU6 and shortcut (Sandler et al. 2018)."""
    size, wide = (6, 4) if tiny else (28, 32)
    net = Network(1, size, size)
    stem = net.relu6(net.conv(INPUT, "stem", (1, wide), [3, 3], stride=2))
    x = net.relu6(net.conv(stem, "depthwise", (wide, wide), [3, 3], group=wide))
    x = net.add("Add", [net.conv(x, "pointwise", (wide, wide), [1, 1]), stem])
    return _pooled_head(net, x, wide, "depthwise")


def _pooled_head(net: Network, x: str, channels: int, name: str) -> onnx.ModelProto:
    pooled = net.add("Flatten", [net.add("GlobalAveragePool", [x])])
    net.dense(pooled, "head", channels, 4, OUTPUT)
    return net.model(name, 4)


def _cnn_average(tiny: bool) -> onnx.ModelProto:
    length, wide = (12, 4) if tiny else (128, 32)
    net = Network(2, length)
    x = net.pool(net.relu(net.conv(INPUT, "conv1", (2, wide), [3])), "AveragePool", 1)
    x = net.pool(net.relu(net.conv(x, "conv2", (wide, wide), [3])), "AveragePool", 1)
    net.dense(net.add("Flatten", [x]), "head", wide * (length // 4), 4, OUTPUT)
    return net.model("cnn_average", 4)


def _cnn_batchnorm(tiny: bool) -> onnx.ModelProto:
    length, wide = (8, 4) if tiny else (128, 32)
    net = Network(2, length)
    x = net.relu(net.batch_norm(net.conv(INPUT, "conv1", (2, wide), [3]), "bn1", wide))
    x = net.relu(net.batch_norm(net.conv(x, "conv2", (wide, wide), [3]), "bn2", wide))
    return _pooled_head(net, x, wide, "cnn_batchnorm")


def _cnn_groupnorm(tiny: bool) -> onnx.ModelProto:
    length, wide = (8, 4) if tiny else (128, 32)
    net = Network(2, length)
    x = net.relu(net.group_norm(net.conv(INPUT, "conv1", (2, wide), [3]), "gn1", (wide, length), 2))
    x = net.relu(net.group_norm(net.conv(x, "conv2", (wide, wide), [3]), "gn2", (wide, length), 2))
    return _pooled_head(net, x, wide, "cnn_groupnorm")


# ---- sequences ---------------------------------------------------------------------------------


def _transformer(tiny: bool) -> onnx.ModelProto:
    """One encoder layer over tokens: two heads, layer normalisation, GELU."""
    length, width, tokens = (5, 8, TOKENS) if tiny else (32, 64, TOKENS)
    net = Network(length)
    table = net.weight("embedding.weight", (tokens, width), 1)
    x = net.add("Gather", [table, net.add("Cast", [INPUT], to=_INT64)], axis=0)
    x = net.add("Add", [x, net.weight("position.weight", (length, width), 1)])
    x = net.layer_norm(net.add("Add", [x, net.attention(x, "attention", length, width, 2)]), "norm1", width)
    inner = net.gelu(net.project(x, "fc1", width, 2 * width))
    x = net.layer_norm(net.add("Add", [x, net.project(inner, "fc2", 2 * width, width)]), "norm2", width)
    net.dense(net.add("ReduceMean", [x], axes=[1], keepdims=0), "head", width, 3, OUTPUT)
    return net.model("transformer", 3)


def _embedding_bag(tiny: bool) -> onnx.ModelProto:
    """The mean of the embeddings of all tokens of a row."""
    length, width = (6, 4) if tiny else (32, 64)
    net = Network(length)
    table = net.weight("embedding.weight", (TOKENS, width), 1)
    rows = net.add("Gather", [table, net.add("Cast", [INPUT], to=_INT64)], axis=0)
    net.dense(net.add("ReduceMean", [rows], axes=[1], keepdims=0), "head", width, 3, OUTPUT)
    return net.model("embedding_bag", 3)


def _lstm(tiny: bool) -> onnx.ModelProto:
    """9 → 64 over 128 steps, the last state classified; tiny: 3 → 4 over 6 steps."""
    length, features, hidden = (6, 3, 4) if tiny else (128, 9, 64)
    net = Network(length, features)
    last = net.recurrent(INPUT, "LSTM", features, hidden)[1]
    net.dense(net.add("Squeeze", [last, net.sizes(0)]), "head", hidden, 6, OUTPUT)
    return net.model("lstm", 6)


def _gru(tiny: bool) -> onnx.ModelProto:
    """9 → 64 over 128 steps, the mean of all states classified; tiny: 3 → 4 over 6 steps."""
    length, features, hidden = (6, 3, 4) if tiny else (128, 9, 64)
    net = Network(length, features)
    states = net.add("Squeeze", [net.recurrent(INPUT, "GRU", features, hidden)[0], net.sizes(1)])
    net.dense(net.add("ReduceMean", [states], axes=[0], keepdims=0), "head", hidden, 6, OUTPUT)
    return net.model("gru", 6)


def _rnn(tiny: bool) -> onnx.ModelProto:
    """9 → 64 over 128 steps, the last state classified; tiny: 3 → 4 over 6 steps."""
    length, features, hidden = (6, 3, 4) if tiny else (128, 9, 64)
    net = Network(length, features)
    last = net.add("Squeeze", [net.recurrent(INPUT, "RNN", features, hidden)[1], net.sizes(0)])
    net.dense(last, "head", hidden, 6, OUTPUT)
    return net.model("rnn", 6)


def _lstm_both_ways(tiny: bool) -> onnx.ModelProto:
    """9 → 2 · 32 over 128 steps, the mean of all states classified; tiny: 3 → 2 · 4 over 6 steps."""
    length, features, hidden = (6, 3, 4) if tiny else (128, 9, 32)
    net = Network(length, features)
    states = net.recurrent(INPUT, "LSTM", features, hidden, both_ways=True)[0]
    mean = net.add("ReduceMean", [states], axes=[0], keepdims=0)
    flat = net.add("Flatten", [net.add("Transpose", [mean], perm=[1, 0, 2])])
    net.dense(flat, "head", 2 * hidden, 6, OUTPUT)
    return net.model("lstm_both_ways", 6)


# ---- as they come from elsewhere ----------------------------------------------------------------


def _takes(model: onnx.ModelProto, kind: int, *inputs: tuple[str, list[int | str]]) -> onnx.ModelProto:
    """The model with these inputs instead of its own; tokens, where they are whole numbers, come last."""
    del model.graph.input[:]
    for i, (name, shape) in enumerate(inputs):
        own = kind if i == len(inputs) - 1 else TensorProto.FLOAT
        model.graph.input.append(helper.make_tensor_value_info(name, own, shape))
    return model


def _last_of_gru(net: Network, features: int, hidden: int, *, time_first: bool) -> onnx.ModelProto:
    last = net.recurrent(INPUT, "GRU", features, hidden, time_first=time_first)[1]
    net.dense(net.add("Squeeze", [last, net.sizes(0)]), "head", hidden, 6, OUTPUT)
    return net.model("gru", 6)


def _gru_time_first(tiny: bool) -> onnx.ModelProto:
    """PyTorch's default: time before the batch."""
    length, features, hidden = (6, 3, 4) if tiny else (128, 9, 64)
    made = _last_of_gru(Network(length, features), features, hidden, time_first=True)
    return _takes(made, TensorProto.FLOAT, (INPUT, [length, "batch", features]))


def _gru_open_length(tiny: bool) -> onnx.ModelProto:
    """A sequence of open length, fixed by what `--sequence` does."""
    length, features, hidden = (6, 3, 4) if tiny else (128, 9, 64)
    made = _last_of_gru(Network(length, features), features, hidden, time_first=False)
    fix_sequence(
        _takes(made, TensorProto.FLOAT, (INPUT, ["batch", "time", features])), length, lambda _: None
    )
    return made


def _embedded(net: Network, width: int) -> str:
    """The mean of the embeddings of whole numbers `tokens (batch, length)`."""
    table = net.weight("embedding.weight", (TOKENS, width), 1)
    return net.add("ReduceMean", [net.add("Gather", [table, "tokens"])], axes=[1], keepdims=0)


def _int64_tokens(tiny: bool) -> onnx.ModelProto:
    length, width = (6, 4) if tiny else (32, 64)
    net = Network(length)
    net.dense(_embedded(net, width), "head", width, 3, OUTPUT)
    return _takes(net.model("int64_tokens", 3), TensorProto.INT64, ("tokens", ["batch", length]))


def _two_inputs(tiny: bool) -> onnx.ModelProto:
    """A dense layer of numbers beside embedded tokens, as files of opset 12 have them."""
    numbers, length, width = (3, 4, 4) if tiny else (32, 32, 64)
    net = Network(numbers)
    seen = net.relu(net.dense(INPUT, "fc", numbers, width))
    both = net.add("Concat", [seen, _embedded(net, width)], axis=1)
    net.dense(both, "head", 2 * width, 3, OUTPUT)
    made = _takes(
        net.model("two_inputs", 3), TensorProto.INT64,
        (INPUT, ["batch", numbers]), ("tokens", ["batch", length]),
    )  # fmt: skip
    made.opset_import[0].version = 12
    return made


def _mlp_double(tiny: bool) -> onnx.ModelProto:
    return in_precision(_mlp(tiny), TensorProto.DOUBLE)


def _mlp_half_weights(tiny: bool) -> onnx.ModelProto:
    """float16 weights behind a Cast, as they are stored to be small."""
    made = _mlp(tiny)
    casts = []
    for tensor in made.graph.initializer:
        values = numpy_helper.to_array(tensor).astype(np.float16)
        casts.append(helper.make_node("Cast", [f"{tensor.name}.half"], [tensor.name], to=TensorProto.FLOAT))
        tensor.CopyFrom(numpy_helper.from_array(values, f"{tensor.name}.half"))
    nodes = list(made.graph.node)
    del made.graph.node[:]
    made.graph.node.extend([*casts, *nodes])
    return made


def _scikit_mlp(tiny: bool) -> onnx.ModelProto:
    """StandardScaler and MLPClassifier in the operators of skl2onnx, with labels and their probabilities."""
    features, hidden = (5, 8) if tiny else (64, 128)
    net = Network(features)
    offset, scale = [0.1] * features, [0.9] * features
    x = net.add("Scaler", [INPUT], offset=offset, scale=scale, domain="ai.onnx.ml")
    x = net.relu(net.project(x, "fc", features, hidden))
    chances = net.add("Softmax", [net.project(x, "head", hidden, 3)], "probabilities")
    best = net.add("ArgMax", [chances], axis=1)
    names = net.tensor("classes", np.arange(3))
    net.add("ArrayFeatureExtractor", [names, best], "label", domain="ai.onnx.ml")
    made = net.model("scikit_mlp", 3)
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    del made.graph.output[:]
    made.graph.output.extend([
        helper.make_tensor_value_info("label", TensorProto.INT64, None),
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 3]),
    ])  # fmt: skip
    return made


def _attention(tiny: bool) -> onnx.ModelProto:
    """Causal, every two of four heads with keys and values of their own, in the operators of opset 23."""
    length, features, width = (5, 3, 8) if tiny else (32, 9, 64)
    net = Network(length, features, opset=23)
    x = net.project(INPUT, "embed", features, width)
    # A key's bias has the gradient 0: the same for all keys, softmax leaves it out.
    key = net.add("MatMul", [x, net.weight("key.weight", (width, width // 2), width)])
    query, value = net.project(x, "query", width, width), net.project(x, "value", width, width // 2)
    mixed = net.add("Attention", [query, key, value], is_causal=1, q_num_heads=4, kv_num_heads=2)
    x = net.add("Add", [x, net.project(mixed, "out", width, width)])
    x = net.add("RMSNormalization", [x, net.tensor("norm.weight", np.ones(width, np.float32))], axis=-1)
    net.dense(net.add("ReduceMean", [x, net.sizes(1)], keepdims=0), "head", width, 3, OUTPUT)
    return net.model("attention", 3)


TOKENS = 12
_INT64 = 7

ZOO: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("mlp", "dense layers with ReLU", _mlp),
        Entry("mlp_regression", "dense layers with tanh", _mlp_tanh, loss="mse"),
        Entry("autoencoder", "dense encoder and decoder", _autoencoder, loss="mse"),
        Entry("mlp_residual", "shortcuts, and the first layer joined to the last", _mlp_residual),
        Entry("mlp_smooth", "SiLU and LeakyReLU", _mlp_smooth, loss="l1"),
        Entry("mlp_dropout", "dense layers with dropout", _mlp_dropout, engines=PORTABLE, modes=True),
        Entry("cnn1d", "convolutions and max pooling over windows of 9 × 128", _cnn1d),
        Entry("cnn2d", "convolutions and max pooling over pictures of 28 × 28", _cnn2d),
        Entry("depthwise", "a depthwise-separable block with ReLU6 and a shortcut", _depthwise),
        Entry("cnn_average", "convolutions and average pooling", _cnn_average, engines=PORTABLE),
        Entry(
            "cnn_batchnorm",
            "convolutions and batch normalisation, running statistics kept",
            _cnn_batchnorm,
            engines=PORTABLE,
            freeze=("*.running_*",),
            modes=True,
        ),
        Entry(
            "cnn_frozen_batchnorm",
            "the same, its normalisation frozen",
            _cnn_batchnorm,
            engines=PORTABLE,
            freeze=("bn*",),
        ),
        Entry("cnn_groupnorm", "convolutions and group normalisation", _cnn_groupnorm, engines=PORTABLE),
        Entry(
            "transformer",
            "embedding, attention with two heads, layer normalisation, GELU",
            _transformer,
            engines=PORTABLE,
            tokens=TOKENS,
        ),
        Entry("embedding_bag", "the mean of embeddings", _embedding_bag, tokens=TOKENS),
        Entry("lstm", "LSTM 9 → 64 over 128 steps, its last state", _lstm),
        Entry("gru", "GRU 9 → 64 over 128 steps, the mean of its states", _gru),
        Entry("rnn", "RNN 9 → 64 over 128 steps, its last state", _rnn, engines=PORTABLE),
        Entry(
            "lstm_both_ways",
            "LSTM 9 → 2 · 32 over 128 steps, both ways, the mean of its states",
            _lstm_both_ways,
            engines=PORTABLE,
        ),
        Entry("gru_time_first", "GRU with time before the batch, its last state", _gru_time_first),
        Entry("gru_open_length", "GRU over sequences whose length the file leaves open", _gru_open_length),
        Entry("int64_tokens", "the mean of embeddings of whole numbers", _int64_tokens, tokens=TOKENS),
        Entry("two_inputs", "numbers beside embedded tokens, opset 12", _two_inputs, tokens=TOKENS),
        Entry("mlp_double", "dense layers in double precision", _mlp_double),
        Entry("mlp_half_weights", "float16 weights behind a Cast", _mlp_half_weights),
        Entry("scikit_mlp", "MLPClassifier of scikit-learn with its StandardScaler", _scikit_mlp),
        Entry(
            "attention",
            "causal attention with shared keys and values, RMS normalisation, of opset 23",
            _attention,
            engines=PORTABLE,
        ),
    )
}
