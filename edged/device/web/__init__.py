"""Predictions, metrics and a page over HTTP; imported only where the section `web` is configured.

`front.py` is what the daemon starts: the sockets, and one thread with an event loop of its own, where
`service.py` answers. Each request passes `http/guard.py`, then a `GuardedRoute`, which checks its
scopes.
"""
