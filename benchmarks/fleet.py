"""A coordinator and many devices that train nothing, over mosquitto on this machine.

`round` rows: devices over a few connections, updates of 16,966 parameters as int8, the coordinator a process
of its own. `seconds` is from the round's opening, as a device hears it, to the model that came of it;
everything is in it: sending, admission, the disk, the aggregate. `rss_mb` is the most that the coordinator
has had in memory, `cpu` the processor time that it took for a round. `aggregate` rows: the same coordinator's
stages alone, without a broker: `admit` unpacks, checks and makes durable, `reduce` makes the model of what is
durable. The first round is left out.

`python benchmarks/fleet.py [--devices N ...] [--rounds R] [--json] [--out FILE]`
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from output import finish, options
from process_usage import peak_mb, processor_seconds
from safetensors.numpy import save_file

from edged import logs
from edged.workbench.demo.broker import embedded_broker

if TYPE_CHECKING:
    from edged.domain.federated.messages import RoundAnnouncement

ROOT = Path(__file__).parents[1]
SHAPES: dict[str, tuple[int, ...]] = {
    "w1": (64, 128), "b1": (128,), "w2": (128, 64), "b2": (64,), "w3": (64, 6), "b3": (6,),
}  # fmt: skip
DRAWN = 64
HOW = ("mean", "trimmed_mean", "median")
Row = dict[str, Any]


def blobs_of(shapes: dict[str, tuple[int, ...]]) -> list[bytes]:
    """A few updates; devices share them."""
    from edged.domain.training.weight_coding import code
    from edged.mqtt import weight_encoding
    from tests.fleet.senders import change_of

    return [
        weight_encoding.pack_coded(code(change_of(f"b{n}", 1, shapes, 0.002)[0], "int8"))
        for n in range(DRAWN)
    ]


def configuration(folder: Path, port: int, devices: int, rounds: int, how: str) -> Path:
    """The files of a coordinator."""
    from tests.fleet.senders import FLEET, base_weights

    save_file(base_weights(SHAPES), folder / "model.safetensors")
    values = {
        "fleet": FLEET, "model": "model.safetensors", "bundle": "f00", "choose": {"everyone": True},
        "gate": {"evaluate": False},
        "mqtt": {"host": "127.0.0.1", "port": port}, "reduce": {"how": how}, "log": {"level": "warning"},
        "round": {"devices": devices, "rounds": rounds, "window": 0}, "train": {"clip_norm": 2.0},
    }  # fmt: skip
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def rounds_over_mqtt(devices: int, rounds: int, how: str) -> Row:
    """Whole rounds with a coordinator in a process."""
    from edged.domain.federated.messages import FleetTopics, UpdateHeader
    from tests.fleet.senders import FLEET, Senders

    blobs, topics = blobs_of(SHAPES), FleetTopics(FLEET)

    def messages(told: RoundAnnouncement, device: str) -> list[tuple[str, bytes]]:
        blob = blobs[int(device[1:]) % DRAWN]
        update = UpdateHeader(device, told.round, told.id, told.base.hash, 100, len(blob), "0" * 64)
        return list(update.messages(topics, blob))

    with tempfile.TemporaryDirectory(prefix="edged-fleet-") as name, embedded_broker("mosquitto") as broker:
        folder = Path(name)
        path = configuration(folder, broker.port, devices, rounds + 2, how)
        names = [f"d{n}" for n in range(devices)]
        senders = Senders(broker.port, names, messages=messages, resend=60.0, connections=8)
        command = [sys.executable, "-m", "edged", "fleet", "run", str(path)]
        process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)})
        times, used = [], []
        for number in range(1, rounds + 2):
            senders.wait_state("open", number, 120)
            began = time.perf_counter()
            senders.wait_state("done", number, 300)
            times.append(time.perf_counter() - began)
            used.append(processor_seconds(process.pid))
            peak = peak_mb(process.pid)
        process.terminate()
        process.wait(60)
        senders.close()
    taken, cpu = times[1:], (used[-1] - used[0]) / rounds
    return {
        "what": "round", "how": how, "devices": devices, "seconds": round(statistics.median(taken), 3),
        "worst": round(max(taken), 3), "cpu": round(cpu, 3),
        "rss_mb": round(peak, 1), "bytes": len(blobs[0]),
    }  # fmt: skip


def stages_alone(devices: int, how: str) -> Row:
    """Admission and reduction in a process of their own."""
    command = [sys.executable, __file__, "--stages", str(devices), "--how", how]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    return dict(json.loads(done.stdout))


def stages(devices: int, how: str) -> Row:
    """What `stages_alone` runs."""
    from edged.domain.federated.messages import FleetTopics, UpdateHeader
    from edged.fleet.config import load
    from edged.fleet.coordinator.coordinator import Coordinator
    from edged.fleet.rules.aggregation import aggregate
    from tests.fleet.senders import FLEET

    blobs, topics = blobs_of(SHAPES), FleetTopics(FLEET)
    with tempfile.TemporaryDirectory(prefix="edged-fleet-") as name:
        config = load(configuration(Path(name), 1, devices, 1, how))
        coordinator = Coordinator(config)
        coordinator.advance(time.time())
        told = coordinator.course.round
        if told is None:
            raise ValueError("no round")
        line = UpdateHeader("d", 1, told.id, told.base.hash, 100, 1, "0" * 64)
        bodies = [next(line.messages(topics, blob))[1].partition(b"\n") for blob in blobs]
        heads = [json.loads(head) for head, _, _ in bodies]
        admitting = cpu = 0.0
        for at in range(0, devices, 256):
            batch = [
                json.dumps(heads[n % DRAWN] | {"device": f"d{n}"}).encode() + b"\n" + bodies[n % DRAWN][2]
                for n in range(at, min(devices, at + 256))
            ]
            began, used = time.perf_counter(), time.process_time()
            for n, payload in enumerate(batch, at):
                coordinator.admission.receive(f"d{n}", 1, None, payload)
            coordinator.admission.commit()
            admitting += time.perf_counter() - began
            cpu += time.process_time() - used
        if coordinator.admission.accepted != devices:
            raise ValueError(f"{coordinator.admission.accepted} of {devices} accepted")
        began, used = time.perf_counter(), time.process_time()
        aggregate(config.reduce, coordinator.admission.updates(), coordinator.layout)
        reducing = time.perf_counter() - began
        cpu += time.process_time() - used
        coordinator.close()
    return {
        "what": "aggregate", "how": how, "devices": devices, "seconds": round(admitting + reducing, 3),
        "cpu": round(cpu, 3), "admit": round(admitting, 3), "reduce": round(reducing, 3),
        "rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }  # fmt: skip


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--devices", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds of the smaller fleets; one of the largest"
    )
    parser.add_argument("--stages", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--how", choices=HOW, default="mean", help=argparse.SUPPRESS)
    args = parser.parse_args()
    logs.configure("warning")
    if args.stages:
        print(json.dumps(stages(args.stages, args.how)))
        return
    largest = max(args.devices)
    rows = [stages_alone(largest, how) for how in HOW]
    rows += [rounds_over_mqtt(n, args.rounds if n < largest else 1, "mean") for n in args.devices]
    rows.append(rounds_over_mqtt(largest, 1, "trimmed_mean"))
    parameters = sum(int(np.prod(shape)) for shape in SHAPES.values())
    finish("fleet", rows, args, parameters=str(parameters))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
