"""The MQTT session over paho, with its own PUBLISH parser."""
