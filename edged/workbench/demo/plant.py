"""The samples that the demo publishes: of a simulated plant, or of a recorded stream.

The plant is a motor and a centrifugal pump on an endurance rig, with ageing sensors.
The rig provokes faults in turns, so their labels are known. The model of the unit, of its sensors and of
how both change over the stream is in `docs/studies/plant.md`, with all constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edged.errors import ConfigError
from edged.storage.recordings.reader import read_stream

Floats = NDArray[np.float64]


FEATURES = (
    "speed",  # rpm
    "flow",  # m³/h
    "pressure",  # bar
    "current",  # A
    "vibration_radial",  # mm/s
    "vibration_axial",  # mm/s
    "vibration_high",  # g
    "bearing_temperature",  # °C
    "ambient_temperature",  # °C
)
"""Names of the readings, in the order of the columns of `x`."""

CLASSES: tuple[str, ...] = ("normal", "imbalance", "cavitation", "bearing_wear")
"""Names of the states of the unit; `y` holds their positions."""

RATE = 180.0  # samples per second: what one core of a laptop publishes with ease while the other trains
COMMISSION = 1500  # samples with labels that come first
SECONDS = 300.0  # plant time between two samples
PRIORS = np.cumsum([0.34, 0.22, 0.22, 0.22])
GRAVITY = 9.81
NOMINAL_RPM = 1450.0
LOADS = np.array([0.86, 1.0, 1.1])  # speed setpoints, as shares of the nominal speed
NOISE = np.array([3.0, 0.6, 0.02, 0.12, 0.0, 0.0, 0.0, 0.8, 0.5])  # of each sensor, in its unit
SPREAD = 0.2  # relative scatter of a vibration reading from one short recording
THERMAL_LAG = 0.75  # share of the temperature difference left after one sample

PHASES = (
    (0.0, "commissioning"),  # water at the rated load, all sensors new
    (0.18, "product change"),  # a denser, thicker liquid: more current, calmer vibration
    (0.38, "sensors moved"),  # accelerometers on magnets, turned by 30°: weaker signals, axes mixed
    (0.58, "hot, full load"),  # ambient +12 °C over days, speed +12 %
    (0.78, "loose footing"),  # vibration of the structure rises; back to water
)


def phases(total: int) -> list[tuple[int, str]]:
    """Start index and name of each phase of a stream of `total` samples."""
    return [(round(share * total), name) for share, name in PHASES]


def plant(seed: int, total: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Simulate readings `(total, 9)` in physical units, and the true states of the unit `(total,)`.

    >>> x, y = plant(seed=1, total=1000)
    >>> x.shape, x.dtype, y.dtype
    ((1000, 9), dtype('float32'), dtype('int64'))
    """
    states, setpoints, scatter, noise = np.random.default_rng(seed).spawn(4)
    index = np.arange(total, dtype=np.float64)
    drift = slow_changes(index / total)
    state, setpoint = held(states, 12, total), held(setpoints, 20, total)
    y = np.searchsorted(PRIORS[:-1], state[:, 0], side="right")
    faults = severities(y, state[:, 1])
    speed = LOADS[(setpoint[:, 0] * len(LOADS)).astype(int)] * (1 + 0.12 * drift.load)
    flow, head, power = hydraulics(speed, 0.8 + 0.5 * setpoint[:, 1], drift, faults)
    ambient = 21 + 12 * drift.season + 3 * np.sin(2 * np.pi * index * SECONDS / 86400.0)
    vibration = vibrations(speed, drift, faults) * np.exp(SPREAD * scatter.standard_normal((total, 3)))
    warm = lagging(ambient + 11 * speed + 2.2e-3 * power + 13 * faults.wear)
    pressure = drift.density * GRAVITY * head / 1e5
    current = np.hypot(4.0, power / 512 * (1 + 0.04 * faults.wear))
    truth = np.column_stack([NOMINAL_RPM * speed, flow, pressure, current, vibration, warm, ambient])
    read = sensed(truth, drift, drift.turn) + NOISE * noise.standard_normal(truth.shape)
    return read.astype(np.float32), y.astype(np.int64)


class Drift(NamedTuple):
    """How far each slow change has gone, `(n,)` each."""

    density: Floats
    thickness: Floats
    mount: Floats
    mount_high: Floats
    turn: Floats
    load: Floats
    season: Floats
    loose: Floats
    age: Floats


class Faults(NamedTuple):
    """Severity of each fault, `(n,)`, 0 where it is absent, about 1 where it is full."""

    imbalance: Floats
    cavitation: Floats
    wear: Floats


def slow_changes(share: Floats) -> Drift:
    """The drift at shares of the stream `(n,)`."""
    starts = [start for start, _ in PHASES]
    mounted = (share >= starts[2]).astype(np.float64)
    thickness = ((share >= starts[1]) & (share < starts[4])).astype(np.float64)
    return Drift(
        density=1000 + 180 * thickness,
        thickness=thickness,
        mount=1 - 0.3 * mounted,
        mount_high=1 - 0.4 * mounted,
        turn=np.deg2rad(30) * mounted,
        load=(share >= starts[3]).astype(np.float64),
        season=np.clip((share - starts[3]) / 0.05, 0.0, 1.0),
        loose=(share >= starts[4]).astype(np.float64),
        age=share,
    )


def severities(y: NDArray[np.int64], uniform: Floats) -> Faults:
    """The faults of states `y` `(n,)`, each between 0.5 and 1.2."""
    return Faults(*(np.where(y == label, 0.5 + 0.7 * uniform, 0.0) for label in (1, 2, 3)))


def held(rng: np.random.Generator, every: float, n: int) -> Floats:
    """Two uniform random values `(n, 2)` that change about every so many samples."""
    first, fresh = rng.random(2), rng.random((n, 3))
    values = np.vstack([first, fresh[:, 1:]])
    changed = np.where(fresh[:, 0] < 1.0 / every, np.arange(1, n + 1), 0)
    return values[np.maximum.accumulate(changed)]


def hydraulics(speed: Floats, valve: Floats, drift: Drift, faults: Faults) -> tuple[Floats, Floats, Floats]:
    """Flow in m³/h, head in m and shaft power in W, where pump curve and pipe curve meet."""
    shut_off = 32.0 * speed**2 * (1 - 0.13 * faults.cavitation) * (1 - 0.06 * drift.thickness)
    pump, pipe = 0.0045 * (1 + 0.2 * drift.thickness), 0.006 * valve
    flow = np.sqrt((shut_off - 6.0) / (pump + pipe))
    head = 6.0 + pipe * flow**2
    off_best = flow / (50.0 * speed) - 1
    efficiency = (0.68 - 0.09 * drift.thickness) * (1 - 0.8 * off_best**2) * (1 - 0.08 * faults.cavitation)
    return flow, head, drift.density * GRAVITY * head * flow / 3600 / efficiency


def vibrations(speed: Floats, drift: Drift, faults: Faults, shows: Floats | None = None) -> Floats:
    """Radial and axial velocity in mm/s rms and high-frequency acceleration in g rms, `(n, 3)`.

    `shows` `(3, 3)` multiplies what each fault adds to each of them; 1 when absent.
    """
    on = np.ones((3, 3)) if shows is None else shows
    structure, calm = 1 + 0.6 * drift.loose, 1 - 0.25 * drift.thickness
    imbalance, cavitation, wear = faults
    radial = speed**2 * structure * (1.3 + 2.6 * on[0, 0] * imbalance)
    radial += 0.9 * on[1, 0] * cavitation + 0.5 * on[2, 0] * wear
    axial = speed**2 * structure * (0.8 + 0.5 * on[0, 1] * imbalance)
    axial += 1.3 * on[1, 1] * cavitation + 0.3 * on[2, 1] * wear
    high = speed * (0.6 + 1.1 * on[1, 2] * cavitation * calm + 1.4 * on[2, 2] * wear) * calm
    return np.column_stack([radial * calm, axial * calm, high])


def lagging(steady: Floats) -> Floats:
    """The bearing's temperature, which follows the steady one with a first-order lag."""
    out: Floats = steady.copy()
    for i in range(1, len(out)):
        out[i] += THERMAL_LAG * (out[i - 1] - out[i])
    return out


def sensed(truth: Floats, drift: Drift, turn: Floats) -> Floats:
    """Readings of the ageing sensors without their noise; `turn` is the angle of the accelerometers."""
    reading: Floats = truth.copy()
    reading[:, 4] = drift.mount * np.hypot(np.cos(turn) * truth[:, 4], np.sin(turn) * truth[:, 5])
    reading[:, 5] = drift.mount * np.hypot(np.sin(turn) * truth[:, 4], np.cos(turn) * truth[:, 5])
    reading[:, 6] *= drift.mount_high * (1 - 0.2 * drift.age)
    reading[:, 2] += 0.15 * drift.age
    reading[:, 3] *= 1 + 0.05 * drift.age
    reading[:, 7] -= 4 * drift.age
    return reading


@dataclass
class DemoStream:
    """Samples `x` `(n, d)` to publish, truth `y` `(n,)`, names, and where the plant changes.

    `commission` rows come first, with their labels. `warnings` describe the rows of a recording that are
    left out.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    names: tuple[str, ...]
    classes: tuple[str, ...]
    phases: list[tuple[int, str]]
    commission: int
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)


def simulated(seconds: int, seed: int, rate: float | None = None) -> DemoStream:
    """The plant, long enough for `seconds` at the demo's rate; sampled less often at a lower one."""
    total = COMMISSION + int(RATE * seconds)
    commission = min(COMMISSION, int(0.9 * phases(total)[1][0]))
    live = total - commission if rate is None else min(total - commission, int(rate * seconds))
    rows = np.concatenate([np.arange(commission), np.linspace(commission, total - 1, live).astype(int)])
    x, y = plant(seed, total)
    starts = [(int(np.searchsorted(rows, start)), name) for start, name in phases(total)]
    return DemoStream(x[rows], y[rows], FEATURES, CLASSES, starts, commission)


def replayed(path: Path, seconds: int, rate: float | None = None) -> DemoStream:
    """A recorded classification stream, as much of it as the time allows."""
    whole = read_stream(path)
    recorded, left_out = whole.finite(), whole.left_out()
    if not len(recorded):
        raise ConfigError(left_out or "there are no rows", where=str(path), remedy="name another file")
    if recorded.y is None or np.asarray(recorded.y).ndim != 1 or (np.asarray(recorded.y) % 1 != 0).any():
        raise ConfigError("the demo replays streams with one class label a row", where=str(path))
    y = np.asarray(recorded.y, np.int64)
    total = min(len(y), COMMISSION + int((rate or RATE) * seconds * 4))
    commission = min(COMMISSION, total // 4)
    classes = recorded.classes or tuple(str(i) for i in range(int(y.max()) + 1))
    warnings = () if left_out is None else (left_out,)
    return DemoStream(recorded.x[:total], y[:total], (), classes, [(0, path.stem)], commission, warnings)
