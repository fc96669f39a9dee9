"""Predictions, metrics and a page over HTTP; imported only where the section `web` is configured.

`service.py` is what the daemon starts: one thread with an event loop of its own. Everything that comes in
passes `guard.py` first, then finds its `Door` (`doors.py`), which knows who may enter.
"""
