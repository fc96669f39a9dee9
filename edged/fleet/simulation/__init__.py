"""A simulated fleet: whole devices, the real coordinator and a real broker on one machine."""
