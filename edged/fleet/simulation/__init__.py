"""A fleet of virtual devices: real protocol, broker, coordinator and engines, on parts of one recording."""
