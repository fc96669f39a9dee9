"""What commands over MQTT do on this device, one file per subject."""
