"""MQTT: the session with the broker, topics, and the codecs between payloads and readings."""

from edged.lazy_imports import lazily

# Before paho, which imports them for proxies of websockets and for TLS.
lazily("urllib.request")
lazily("ssl")
