"""Flower: its strategies at a coordinator over MQTT, and an app for its own transport.

Flower 1.41 (Beutel et al., "Flower: a friendly federated learning research framework", 2020) is an extra,
pinned to one version: `pip install 'edged[flower]'`. Only modules of this package know it.
"""
