"""Bundles and models made to harm: refused with one line, while the daemon's memory stays as it is."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.domain import protobuf
from edged.storage.models.bundle_archive import pack_bundle
from edged.storage.models.bundles import seal
from tests.building import build
from tests.device.linear import GOOD, write
from tests.device.transfers.test_install import QUIET, STREAM, feed, made, send, sent
from tests.running_device import Device, Listener, running, wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto

HUGE = 2_000_000_000
GROWTH = 32 << 20  # bytes: less than any of what is asked for below
CHILD = "edged.trainer.first_opening"

Nodes = tuple[list[onnx.NodeProto], list[onnx.TensorProto]]


def constant(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def expand(size: int = HUGE) -> Nodes:
    return [helper.make_node("Expand", ["one", "huge"], ["much"])], [constant("huge", size)]


def constant_of_shape() -> Nodes:
    return [helper.make_node("ConstantOfShape", ["huge"], ["much"])], [constant("huge", HUGE)]


def tile_of_the_batch() -> Nodes:
    """Its size is known only when it runs."""
    shape = helper.make_node("Shape", ["x"], ["rows"], start=0, end=1)
    times = helper.make_node("Mul", ["rows", "huge"], ["times"])
    tile = helper.make_node("Tile", ["one", "times"], ["much"])
    return [shape, times, tile], [constant("huge", HUGE)]


def expand_by_a_value() -> Nodes:
    """It grows only when somebody sends the right sample."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most_of_x"], keepdims=0),
        helper.make_node("Cast", ["most_of_x"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["whole", "flat"], ["row"]),
        helper.make_node("Max", ["row", "flat"], ["times"]),
        helper.make_node("Expand", ["one", "times"], ["much"]),
    ]
    return nodes, [constant("flat", 1)]


def _scan(rounds: list[str]) -> list[onnx.NodeProto]:
    """As many rounds as the tensor `steps` is long, which holds nothing."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["s"], ["t"])], "body",
        [helper.make_tensor_value_info("s", TensorProto.FLOAT, [1]),
         helper.make_tensor_value_info("step", TensorProto.FLOAT, [0])],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, [1])],
    )  # fmt: skip
    steps = helper.make_node("ConstantOfShape", rounds, ["steps"])
    return [steps, helper.make_node("Scan", ["one", "steps"], ["much"], body=body, num_scan_inputs=1)]


def endless_scan() -> Nodes:
    return _scan(["rounds"]), [constant("rounds", 1 << 40, 0)]


def endless_loop() -> Nodes:
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["s"], ["t"])], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []),
         helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         helper.make_tensor_value_info("s", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []),
         helper.make_tensor_value_info("t", TensorProto.FLOAT, [1])],
    )  # fmt: skip
    rounds = numpy_helper.from_array(np.array(1 << 62, np.int64), "rounds")
    return [helper.make_node("Loop", ["rounds", "", "one"], ["much"], body=body)], [rounds]


def hostile(folder: Path, name: str, extra: Callable[[], Nodes], sparse: int = 0) -> bytes:
    """A bundle file whose own model does something more."""
    bundle = build(
        write(folder / f"{name}.onnx", GOOD), folder / name, loss="cross_entropy", engine="portable"
    )
    path = bundle.inference_model
    model = onnx.load(path)
    graph = model.graph
    nodes, tensors = extra()
    output = graph.output[0].name
    for node in graph.node:
        for i, made_here in enumerate(node.output):
            node.output[i] = "plain" if made_here == output else made_here
    data = graph.input[0].name
    for node in nodes:
        for i, read in enumerate(node.input):
            node.input[i] = data if read == "x" else read
    one = numpy_helper.from_array(np.zeros(1, np.float32), "one")
    largest = helper.make_node("ReduceMax", ["much"], ["most"], keepdims=0)
    graph.node.extend([*nodes, largest, helper.make_node("Add", ["plain", "most"], [output])])
    graph.initializer.extend([one, *tensors])
    if sparse:
        entry = helper.make_sparse_tensor(
            helper.make_tensor("much", TensorProto.FLOAT, [1], [1.0]), constant("", 0), [sparse]
        )
        graph.sparse_initializer.append(entry)
    onnx.save(model, str(path))
    seal(bundle, bundle.files)  # with fitting hashes, as an enemy does
    out = folder / f"{name}.edged"
    pack_bundle(bundle.path, out)
    return out.read_bytes()


def memory(device: Device, field: str) -> int:
    """What the kernel says of the daemon's memory, in bytes."""
    assert device.process is not None
    lines = Path(f"/proc/{device.process.pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def opening(device: Device) -> list[Path]:
    """The processes of a daemon that open something first."""
    assert device.process is not None
    pids = Path(f"/proc/{device.process.pid}/task").glob("*/children")
    children = [Path("/proc") / pid for place in pids for pid in place.read_text(encoding="ascii").split()]
    return [child for child in children if CHILD.encode() in (child / "cmdline").read_bytes()]


def rig(folder: Path, port: int, **sections: Any) -> Device:
    values: dict[str, Any] = {"training": QUIET, "gate": {"probation": 0}, "install": {}}
    return Device(folder, port, STREAM, **(values | sections))


def refused(listener: Listener, name: str, content: bytes, kind: str = "bundle") -> str:
    told = sent(listener, name, content, kind)
    assert told["state"] == "refused", told
    (line,) = told["reasons"]
    assert "\n" not in line
    return str(line)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_bombs_and_endless_graphs_are_refused_and_the_daemon_does_not_grow(
    broker: Mosquitto, tmp_path: Path
) -> None:
    device = rig(tmp_path, broker.port, install={"timeout": "6s"})
    device.interpreter = True
    many_fields = b"".join(
        (protobuf.message(7, 2 * 6_000_000), (protobuf.message(5, 0)) * 6_000_000)
    )  # six million initializers of nothing
    with running(device, broker.port) as listener:
        feed(listener, 600)
        before = memory(device, "VmHWM")
        for extra in (expand, constant_of_shape, tile_of_the_batch):
            line = refused(listener, extra.__name__, hostile(tmp_path, extra.__name__, extra))
            assert "first opening of the bundle" in line, line
        sparse = hostile(tmp_path, "sparse", lambda: ([], []), sparse=HUGE)
        assert "first opening of the bundle" in refused(listener, "sparse", sparse)
        assert "may run for ever" in refused(listener, "loop", hostile(tmp_path, "loop", endless_loop))
        line = refused(listener, "value", hostile(tmp_path, "value", expand_by_a_value))
        assert "values of a sample say how large the output of the operator Expand is" in line
        line = refused(listener, "scan", hostile(tmp_path, "scan", endless_scan))
        assert "SIGXCPU" in line or "took longer than" in line, line
        line = refused(listener, "fields", many_fields, "model")  # or read in time, and not the model's
        assert "first opening of the model" in line or "the update leaves it out" in line, line
        assert memory(device, "VmHWM") - before < GROWTH
        assert not opening(device)
        told = sent(listener, "good", made(tmp_path, "good")[1])
        assert told["state"] == "promoted", told
        assert not listener.events("training_paused")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_daemon_killed_while_it_opens_a_transfer_does_not_take_it_up_for_ever(
    broker: Mosquitto, tmp_path: Path
) -> None:
    scan = hostile(tmp_path, "scan", endless_scan)
    device = rig(tmp_path, broker.port)
    with running(device, broker.port) as listener:
        send(listener, "scan", scan)
        killed_while_opening(device)
    with running(device, broker.port):
        killed_while_opening(device)
    with running(device, broker.port) as listener:
        listener.wait(lambda: listener.events("bundle_installed"))
        told = listener.events("bundle_installed")[-1]
        assert told["state"] == "refused"
        assert "the daemon ended 2 times while it opened this transfer" in told["reasons"][0]
        assert not opening(device)
        assert not list((device.state / "incoming").iterdir())


def killed_while_opening(device: Device) -> None:
    """End the daemon without a word; the process that opens ends with it."""
    wait_until(lambda: opening(device), 60)
    (child,) = opening(device)
    device.stop(signal.SIGKILL)
    wait_until(lambda: not child.exists())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hostile_bundle_of_the_configuration_is_not_begun_with(broker: Mosquitto, tmp_path: Path) -> None:
    hostile(tmp_path, "bomb", expand)
    device = rig(tmp_path, broker.port, model={"bundle": str(tmp_path / "bomb")})
    device.start()
    assert device.process is not None
    assert device.process.wait(60) == 3
    assert "first opening of the configured bundle" in device.log.read_text()
    shutil.rmtree(tmp_path / "bomb")
    made(tmp_path, "bomb")
    with running(device, broker.port) as listener:
        listener.request("ping")
    assert device.log.read_text().count("opened_first") == 1
    with running(device, broker.port) as listener:  # it has been opened before
        listener.request("ping")
    assert device.log.read_text().count("opened_first") == 1


@pytest.mark.slow
def test_how_much_memory_is_allowed_is_configured(broker: Mosquitto, tmp_path: Path) -> None:
    hostile(tmp_path, "large", partial(expand, 8_000_000))
    model = {"bundle": str(tmp_path / "large")}
    device = rig(tmp_path, broker.port, model=model, install={"memory_limit": "128MiB"})
    device.start()
    assert device.process is not None
    assert device.process.wait(60) == 3
    assert "needs more than" in device.log.read_text()
    with running(rig(tmp_path, broker.port, model=model), broker.port) as listener:
        listener.request("ping")
