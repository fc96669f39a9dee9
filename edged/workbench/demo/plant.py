"""What the demo publishes: a simulated plant, or a recorded stream.

The plant is a motor and a centrifugal pump on an endurance rig, with ageing sensors.
The rig provokes faults in turns, so their labels are known. What the unit does, what its sensors
make of it, and how both change over the stream is in `docs/studies/plant.md`, with all constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.errors import ConfigError
from edged.storage.recordings import read_stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
"""What is measured, in the order of the columns of `x`."""

CLASSES: tuple[str, ...] = ("normal", "imbalance", "cavitation", "bearing_wear")
"""Names of the states of the unit; `y` holds their positions."""

SECONDS = 300.0
"""Plant time between two samples."""

_PRIORS = np.cumsum([0.34, 0.22, 0.22, 0.22])
_DAY = 86400.0 / SECONDS
_GRAVITY = 9.81
_NOMINAL_RPM = 1450.0
_LOADS = np.array([0.86, 1.0, 1.1])  # speed setpoints, as shares of the nominal speed
_NOISE = np.array([3.0, 0.6, 0.02, 0.12, 0.0, 0.0, 0.0, 0.8, 0.5])  # of each sensor, in its unit
_SPREAD = 0.2  # relative scatter of a vibration reading from one short recording
_VARIETY = np.array([0.3, 0.25, 0.2, 0.2, 0.3])  # of units: structure, size, sensitivities
_FAULT_VARIETY = 0.6  # of what a fault adds to a vibration reading
_THERMAL_LAG = 0.75  # share of the temperature difference left after one sample

_PHASES = (
    (0.0, "commissioning", "water at the rated load, all sensors new"),
    (0.18, "product change", "a denser, thicker liquid: more current, calmer vibration"),
    (0.38, "sensors moved", "accelerometers on magnets, turned by 30°: weaker signals, axes mixed"),
    (0.58, "hot, full load", "ambient +12 °C over days, speed +12 %"),
    (0.78, "loose footing", "vibration of the structure rises; back to water"),
)


def phases(total: int) -> list[tuple[int, str, str]]:
    """Start index, name and what changes, of each phase of a stream of `total` samples."""
    return [(round(share * total), name, what) for share, name, what in _PHASES]


class Plant:
    """A stream of sensor readings with the true state of the unit.

    The same seed and total give the same stream, in whatever pieces it is drawn. After `total`
    samples the plant stays in its last phase and its sensors age no further.

    `seed` is that of everything random in it; all phases are spread over the first `total` samples. `unit`
    says how this unit and its sensors differ from the usual ones.

    >>> x, y = Plant(seed=1, total=1000).sample(5)
    >>> x.shape, x.dtype, y.dtype
    ((5, 9), dtype('float32'), dtype('int64'))
    """

    def __init__(self, seed: int = 0, total: int = 20_000, unit: Unit | None = None) -> None:
        self.total, self._unit_of = total, unit or Unit()
        self.position = 0
        streams = np.random.default_rng(seed).spawn(4)
        self._state = _Held(streams[0], every=12, width=2)
        self._setpoint = _Held(streams[1], every=20, width=2)
        self._scatter, self._noise = streams[2], streams[3]
        self._bearing_temperature: float | None = None

    def sample(self, n: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The next `n` readings `(n, 9)` float32 in physical units, and states `(n,)` int64."""
        index = np.arange(self.position, self.position + n, dtype=np.float64)
        self.position += n
        drift = _Drift.at(index / self.total)
        state = self._state.draw(n)
        y = np.searchsorted(_PRIORS[:-1], state[:, 0], side="right")
        truth = self._unit(index, drift, self._setpoint.draw(n), _Fault.of(y, state[:, 1]))
        return self._read(truth, drift).astype(np.float32), y.astype(np.int64)

    def _unit(self, index: Floats, drift: _Drift, setpoint: Floats, fault: _Fault) -> Floats:
        """What the unit really does: all features without sensors, `(n, 9)`."""
        own = self._unit_of
        speed = _LOADS[(setpoint[:, 0] * len(_LOADS)).astype(int)] * (1 + 0.12 * drift.load)
        flow, head, power = _hydraulics(speed, 0.8 + 0.5 * setpoint[:, 1], drift, fault)
        ambient = 21 + 12 * drift.season + 3 * np.sin(2 * np.pi * index / _DAY)
        vibration = own.structure * _vibration(speed, drift, fault, np.array(own.faults))
        vibration *= np.exp(_SPREAD * self._scatter.standard_normal((len(index), 3)))
        warm = self._warm(ambient + own.warmth + 11 * speed + 2.2e-3 * power + 13 * fault.wear)
        return np.column_stack(
            [
                _NOMINAL_RPM * speed,
                own.size * flow,
                drift.density * _GRAVITY * head / 1e5,
                np.hypot(4.0, own.size * power / 512 * (1 + 0.04 * fault.wear)),
                vibration,
                warm,
                ambient,
            ]
        )

    def _warm(self, steady: Floats) -> Floats:
        """The bearing follows its steady temperature with a first-order lag."""
        out = np.empty(len(steady))
        now = self._bearing_temperature
        for i, target in enumerate(steady.tolist()):
            now = target if now is None else target + _THERMAL_LAG * (now - target)
            out[i] = now
        self._bearing_temperature = now
        return out

    def _read(self, truth: Floats, drift: _Drift) -> Floats:
        """What the ageing sensors make of it."""
        reading = truth.copy()
        own, turn = self._unit_of, drift.turn + self._unit_of.turn
        reading[:, 4] = drift.mount * np.hypot(np.cos(turn) * truth[:, 4], np.sin(turn) * truth[:, 5])
        reading[:, 5] = drift.mount * np.hypot(np.sin(turn) * truth[:, 4], np.cos(turn) * truth[:, 5])
        reading[:, 4:7] *= own.sensitivity
        reading[:, 6] *= drift.mount_high * (1 - 0.2 * drift.age)
        reading[:, 2] += 0.15 * drift.age
        reading[:, 3] *= 1 + 0.05 * drift.age
        reading[:, 7] -= 4 * drift.age
        return np.asarray(reading + _NOISE * self._noise.standard_normal(reading.shape))


@dataclass(frozen=True)
class Unit:
    """How one unit differs from the usual one: its structure, its size, and how its sensors are mounted.

    `structure` multiplies its vibration, `size` flow and current; `faults` how much each of the three faults
    adds to each of the three vibration readings, which follows from make and bearings; `sensitivity` are
    those of these three, `turn` is how far the accelerometers are turned (radians), `warmth` what its bearing
    is warmer by (°C).
    """

    structure: float = 1.0
    size: float = 1.0
    faults: tuple[tuple[float, ...], ...] = ((1.0,) * 3,) * 3
    sensitivity: tuple[float, float, float] = (1.0, 1.0, 1.0)
    turn: float = 0.0
    warmth: float = 0.0

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Unit:
        """One of a plant's units, each of which was built, mounted and wired a little differently."""
        structure, size, a, b, c = np.exp(_VARIETY * rng.standard_normal(5)).tolist()
        faults = np.exp(_FAULT_VARIETY * rng.standard_normal((3, 3))).tolist()
        turn, warmth = rng.uniform(0.0, np.pi / 2), 5.0 * rng.standard_normal()
        return cls(structure, size, tuple(map(tuple, faults)), (a, b, c), turn, warmth)


@dataclass(frozen=True)
class _Drift:
    """How far each slow change has gone, `(n,)` each, at shares of the stream."""

    density: Floats
    thickness: Floats
    mount: Floats
    mount_high: Floats
    turn: Floats
    load: Floats
    season: Floats
    loose: Floats
    age: Floats

    @classmethod
    def at(cls, share: Floats) -> _Drift:
        share = np.minimum(share, 1.0)
        starts = [start for start, _, _ in _PHASES]
        product = ((share >= starts[1]) & (share < starts[4])).astype(np.float64)
        mounted = (share >= starts[2]).astype(np.float64)
        return cls(
            density=1000 + 180 * product,
            thickness=product,
            mount=1 - 0.3 * mounted,
            mount_high=1 - 0.4 * mounted,
            turn=np.deg2rad(30) * mounted,
            load=(share >= starts[3]).astype(np.float64),
            season=np.clip((share - starts[3]) / 0.05, 0.0, 1.0),
            loose=(share >= starts[4]).astype(np.float64),
            age=share,
        )


@dataclass(frozen=True)
class _Fault:
    """Severity of each fault, `(n,)`, 0 where it is absent, about 1 where it is full."""

    imbalance: Floats
    cavitation: Floats
    wear: Floats

    @classmethod
    def of(cls, y: NDArray[np.int64], uniform: Floats) -> _Fault:
        severity = 0.5 + 0.7 * uniform
        return cls(*(np.where(y == label, severity, 0.0) for label in (1, 2, 3)))


class _Held:
    """Uniform random values `(width,)` that are held and drawn anew every so many samples."""

    def __init__(self, rng: np.random.Generator, every: float, width: int) -> None:
        self._rng, self._rate = rng, 1.0 / every
        self._held = rng.random(width)

    def draw(self, n: int) -> Floats:
        """The values of the next `n` samples, `(n, width)`."""
        fresh = self._rng.random((n, len(self._held) + 1))
        values = np.vstack([self._held, fresh[:, 1:]])
        changed = np.where(fresh[:, 0] < self._rate, np.arange(1, n + 1), 0)
        values = values[np.maximum.accumulate(changed)] if n else values[:0]
        if n:
            self._held = values[-1]
        return values


def _hydraulics(speed: Floats, valve: Floats, drift: _Drift, fault: _Fault) -> tuple[Floats, Floats, Floats]:
    """Flow in m³/h, head in m and shaft power in W, where pump curve and pipe curve meet."""
    shut_off = 32.0 * speed**2 * (1 - 0.13 * fault.cavitation) * (1 - 0.06 * drift.thickness)
    pump, pipe = 0.0045 * (1 + 0.2 * drift.thickness), 0.006 * valve
    flow = np.sqrt((shut_off - 6.0) / (pump + pipe))
    head = 6.0 + pipe * flow**2
    off_best = flow / (50.0 * speed) - 1
    efficiency = (0.68 - 0.09 * drift.thickness) * (1 - 0.8 * off_best**2) * (1 - 0.08 * fault.cavitation)
    return flow, head, drift.density * _GRAVITY * head * flow / 3600 / efficiency


def _vibration(speed: Floats, drift: _Drift, fault: _Fault, shows: Floats) -> Floats:
    """Radial and axial velocity in mm/s rms and high-frequency acceleration in g rms, `(n, 3)`.

    `shows` `(3, 3)` multiplies what each fault adds to each of them.
    """
    (imbalance, axially, _), (on_radial, on_axial, on_high), (worn_radial, worn_axial, worn_high) = shows
    structure = 1 + 0.6 * drift.loose
    calm = 1 - 0.25 * drift.thickness
    radial = speed**2 * structure * (1.3 + 2.6 * imbalance * fault.imbalance)
    radial += 0.9 * on_radial * fault.cavitation + 0.5 * worn_radial * fault.wear
    axial = speed**2 * structure * (0.8 + 0.5 * axially * fault.imbalance)
    axial += 1.3 * on_axial * fault.cavitation + 0.3 * worn_axial * fault.wear
    high = speed * (0.6 + 1.1 * on_high * fault.cavitation * calm + 1.4 * worn_high * fault.wear) * calm
    return np.column_stack([radial * calm, axial * calm, high])


RATE = 180.0  # samples a second: what one core of a laptop publishes with ease while the other trains
COMMISSION = 1500


@dataclass
class DemoStream:
    """What is published: samples `x` `(n, d)`, truth `y` `(n,)`, names, and where it changes.

    `units` `(n,)` number the unit of each row, from 1 on; None where there is one alone. `warnings` say what
    of a recording is left out.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    names: tuple[str, ...]
    classes: tuple[str, ...]
    phases: list[tuple[int, str]]
    commission: int
    units: NDArray[np.int64] | None = None
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    def key(self, row: int) -> str:
        """The key of the unit that a row is of."""
        return "unit-1" if self.units is None else f"unit-{self.units[row]}"


def several(machines: int, seed: int, total: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """A plant of units that differ, in turns: readings `(total, 9)` and states `(total,)`."""
    each = -(-total // machines)
    rng = np.random.default_rng([seed, machines])
    units = [Unit.drawn(rng) for _ in range(machines)]
    made = [Plant(seed + at, total=each, unit=unit).sample(each) for at, unit in enumerate(units)]
    x, y = (np.stack(parts, axis=1) for parts in zip(*made, strict=True))
    return x.reshape(-1, x.shape[-1])[:total], y.reshape(-1)[:total]


def simulated(seconds: int, seed: int, rate: float | None = None, machines: int = 1) -> DemoStream:
    """The plant, long enough for `seconds` at the demo's rate; looked at less often at a lower one."""
    total = COMMISSION + int(RATE * seconds)
    commission = min(COMMISSION, int(0.9 * phases(total)[1][0]))
    live = total - commission if rate is None else min(total - commission, int(rate * seconds))
    rows = np.concatenate([np.arange(commission), np.linspace(commission, total - 1, live).astype(int)])
    x, y = Plant(seed, total=total).sample(total) if machines == 1 else several(machines, seed, total)
    return DemoStream(
        x[rows],
        y[rows],
        FEATURES,
        CLASSES,
        [(int(np.searchsorted(rows, start)), name) for start, name, _ in phases(total)],
        commission,
        None if machines == 1 else rows % machines + 1,
    )


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
    return DemoStream(
        recorded.x[:total], y[:total], (), classes, [(0, path.stem)], commission, warnings=warnings
    )
