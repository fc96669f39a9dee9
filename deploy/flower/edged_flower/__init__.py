"""Flower for fleets of edged: an app that carries their rounds over Flower's transport.

Flower (Beutel et al., "Flower: a friendly federated learning research framework", 2020) is limited to the
versions in `compat`. Nothing in `edged` knows it.
"""

import sys
from pathlib import Path


def main() -> None:
    """`edged-flower`: print the directory of the app, for `flwr run`."""
    sys.stdout.write(f"{Path(__file__).with_name('app')}\n")
