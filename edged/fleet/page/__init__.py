"""The fleet page: all devices on a broker in a browser, which speaks MQTT itself.

The files in `static/` need no server but the broker; `server.py` serves them on this machine, `relay.py`
connects browsers to brokers that have no websockets.
"""
