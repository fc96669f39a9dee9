"""Weights, models and bundles that arrive in chunks."""
