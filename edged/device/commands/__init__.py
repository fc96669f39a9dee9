"""Commands over MQTT: how they arrive, are executed and answered, and one file per subject."""
