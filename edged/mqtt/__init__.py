"""MQTT: the session with the broker, topics, and the codecs between payloads and readings."""
