"""The demonstration: an embedded broker, a simulated plant, and the real daemon and trainer."""
