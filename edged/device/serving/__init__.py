"""Serving: samples -> predictions, labels -> live quality, the swap; and the thread that does it."""
