"""A plant of many pumps that differ, for studies of what is learned by key; not a program.

Each unit was built, mounted and wired differently: docs/studies/plant.md has the distributions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from edged.workbench.demo import plant

if TYPE_CHECKING:
    from numpy.typing import NDArray

VARIETY = np.array([0.3, 0.25, 0.2, 0.2, 0.3])  # of units: structure, size, sensitivities
FAULT_VARIETY = 0.6  # of what a fault adds to a vibration reading


class Unit(NamedTuple):
    """How one unit differs from the usual one: its structure, its size, and how its sensors are mounted.

    `structure` multiplies its vibration, `size` flow and current; `faults` `(3, 3)` how much each fault adds
    to each vibration reading; `sensitivity` `(3,)` are those of these three, `turn` is the angle of the
    accelerometers (radians), `warmth` what its bearing is warmer by (°C).
    """

    structure: float
    size: float
    faults: NDArray[np.float64]
    sensitivity: NDArray[np.float64]
    turn: float
    warmth: float


def drawn(rng: np.random.Generator) -> Unit:
    """One of a plant's units."""
    structure, size, *sensitivity = np.exp(VARIETY * rng.standard_normal(5)).tolist()
    faults = np.exp(FAULT_VARIETY * rng.standard_normal((3, 3)))
    turn, warmth = rng.uniform(0.0, np.pi / 2), 5.0 * rng.standard_normal()
    return Unit(structure, size, faults, np.array(sensitivity), turn, warmth)


def pump(unit: Unit, seed: int, total: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """`plant.plant` of this unit: readings `(total, 9)` and states `(total,)`."""
    states, setpoints, scatter, noise = np.random.default_rng(seed).spawn(4)
    index = np.arange(total, dtype=np.float64)
    drift = plant.slow_changes(index / total)
    state, setpoint = plant.held(states, 12, total), plant.held(setpoints, 20, total)
    y = np.searchsorted(plant.PRIORS[:-1], state[:, 0], side="right")
    faults = plant.severities(y, state[:, 1])
    speed = plant.LOADS[(setpoint[:, 0] * len(plant.LOADS)).astype(int)] * (1 + 0.12 * drift.load)
    flow, head, power = plant.hydraulics(speed, 0.8 + 0.5 * setpoint[:, 1], drift, faults)
    ambient = 21 + 12 * drift.season + 3 * np.sin(2 * np.pi * index * plant.SECONDS / 86400.0)
    vibration = unit.structure * plant.vibrations(speed, drift, faults, unit.faults)
    vibration *= np.exp(plant.SPREAD * scatter.standard_normal((total, 3)))
    warm = plant.lagging(ambient + unit.warmth + 11 * speed + 2.2e-3 * power + 13 * faults.wear)
    pressure = drift.density * plant.GRAVITY * head / 1e5
    current = np.hypot(4.0, unit.size * power / 512 * (1 + 0.04 * faults.wear))
    truth = np.column_stack(
        [plant.NOMINAL_RPM * speed, unit.size * flow, pressure, current, vibration, warm, ambient]
    )
    read = plant.sensed(truth, drift, drift.turn + unit.turn)
    read[:, 4:7] *= unit.sensitivity
    read += plant.NOISE * noise.standard_normal(truth.shape)
    return read.astype(np.float32), y.astype(np.int64)


def several(machines: int, seed: int, total: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """A plant of units that differ, in turns: readings `(total, 9)` and states `(total,)`."""
    each = -(-total // machines)
    rng = np.random.default_rng([seed, machines])
    units = [drawn(rng) for _ in range(machines)]
    made = [pump(unit, seed + at, each) for at, unit in enumerate(units)]
    x, y = (np.stack(parts, axis=1) for parts in zip(*made, strict=True))
    return x.reshape(-1, x.shape[-1])[:total], y.reshape(-1)[:total]
