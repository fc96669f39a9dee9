"""The coordinator of a fleet: `edged fleet run`. A program of its own, which no daemon imports."""
