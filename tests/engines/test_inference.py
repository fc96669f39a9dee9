from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edged.bundles.graph.templates import mlp
from edged.engines.inference import InferenceModel
from edged.errors import ConfigError, ModelError


def saved(path: Path, model: onnx.ModelProto) -> Path:
    onnx.save(model, str(path))
    return path


@pytest.fixture
def served(tmp_path: Path) -> InferenceModel:
    return InferenceModel(saved(tmp_path / "m.onnx", mlp(4, 3)))


def test_a_provider_that_this_build_has_not_is_refused_instead_of_the_cpu_taken(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", mlp(4, 3))
    with pytest.raises(ConfigError, match=r"serving\.provider: this onnxruntime has no Tensorrt"):
        InferenceModel(path, providers=["TensorrtExecutionProvider"])


def windows() -> onnx.ModelProto:
    """A model of (batch, 2, 3) windows with one output per row, (batch,)."""
    nodes = [helper.make_node("ReduceMean", ["x"], ["y"], axes=[1, 2], keepdims=0)]
    take = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2, 3])
    give = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])
    graph = helper.make_graph(nodes, "windows", [take], [give])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_it_predicts_rows_of_any_number(served: InferenceModel) -> None:
    x = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    together = served.predict(x)
    assert together.shape == (40, 3)
    assert together.dtype == np.dtype(np.float32)
    for n in (0, 1, 7):
        np.testing.assert_allclose(served.predict(x[:n]), together[:n], rtol=1e-5, atol=1e-6)


def test_it_knows_its_widths(served: InferenceModel) -> None:
    assert (served.input_width, served.output_width) == (4, 3)
    served.warm_up()
    served.warm_up(rows=(1, 256))


def test_rows_become_windows_where_the_model_takes_them(tmp_path: Path) -> None:
    model = InferenceModel(saved(tmp_path / "m.onnx", windows()))
    assert (model.input_width, model.output_width) == (6, 1)
    np.testing.assert_allclose(model.predict(np.arange(12, dtype=np.float32).reshape(2, 6)), [[2.5], [8.5]])


@pytest.mark.parametrize("x", [np.zeros((2, 5), np.float32), np.zeros(4, np.float32), np.zeros((2, 4))])
def test_rows_that_do_not_fit_are_refused(served: InferenceModel, x: np.ndarray) -> None:
    with pytest.raises(ModelError, match=r"m.onnx: the model takes float32 rows of 4, got float"):
        served.predict(x)


@pytest.mark.parametrize("content", [b"", b"not a model", bytes(range(256)) * 4])
def test_a_file_that_is_no_model_is_one_clear_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        InferenceModel(tmp_path / "m.onnx")
    assert "\n" not in caught.value.line()


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    content = saved(tmp_path / "m.onnx", mlp(4, 3)).read_bytes()
    for length in range(0, len(content), 97):
        (tmp_path / "cut.onnx").write_bytes(content[:length])
        with pytest.raises(ModelError):
            InferenceModel(tmp_path / "cut.onnx")


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gone.onnx: the model cannot be loaded"):
        InferenceModel(tmp_path / "gone.onnx")


def test_a_fixed_batch_is_refused(tmp_path: Path) -> None:
    model = mlp(4, 3)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    with pytest.raises(ModelError, match="the batch must be dynamic"):
        InferenceModel(saved(tmp_path / "m.onnx", model))


def test_two_inputs_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 2]) for n in "aby"]
    graph = helper.make_graph(nodes, "two", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(ModelError, match="one float32 input"):
        InferenceModel(saved(tmp_path / "m.onnx", model))


def test_threads_may_share_a_model(served: InferenceModel) -> None:
    x = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    expected = served.predict(x).tobytes()
    results: list[bool] = []

    def work() -> None:
        results.extend(served.predict(x).tobytes() == expected for _ in range(200))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 800
    assert all(results)


def test_loading_and_warming_up_pause_between_their_steps(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", mlp(4, 3))
    go_on, passed = threading.Semaphore(0), threading.Semaphore(0)

    def breathe() -> None:
        passed.release()
        assert go_on.acquire(timeout=10)

    loaded: list[InferenceModel] = []

    def load() -> None:
        loaded.append(InferenceModel(path, breathe=breathe))
        loaded[0].warm_up((1, 32))

    thread = threading.Thread(target=load)
    thread.start()
    assert passed.acquire(timeout=10)
    assert not loaded, "read, but not yet prepared"
    go_on.release()
    for _ in range(2):  # before each of the two sizes
        assert passed.acquire(timeout=10)
        assert loaded
        go_on.release()
    thread.join(10)
    assert not thread.is_alive()
    assert loaded[0].predict(np.zeros((2, 4), np.float32)).shape == (2, 3)
