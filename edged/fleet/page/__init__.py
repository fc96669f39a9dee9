"""The fleet page: all devices on a broker in a browser, which speaks MQTT over a WebSocket itself.

The files in `static/` need no server but the broker; `server.py` writes them, or serves them on this machine.
"""
