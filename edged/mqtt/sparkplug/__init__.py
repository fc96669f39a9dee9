"""Sparkplug B: payload and edge node."""
