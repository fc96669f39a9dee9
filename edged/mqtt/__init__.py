"""MQTT: the session with the broker, topics, and the codecs between payloads and readings."""

from edged.lazily import lazily

lazily("urllib.request")  # before paho, which imports it for proxies of websockets
