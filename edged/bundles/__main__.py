"""`python -m edged.bundles`: build a standard bundle, or export a mixture, as the order on stdin asks for.

See `edged.domain.child_orders`.
"""

from __future__ import annotations

import sys

from edged.bundles import require
from edged.domain.child_orders import Done, MixtureOrder, StandardBundleOrder
from edged.host.child_process import carry_out


def _carry_out(order: StandardBundleOrder | MixtureOrder) -> Done:
    require()
    # Imported here, so that a wrong order is answered before the heavy packages are loaded.
    if isinstance(order, StandardBundleOrder):
        from edged.bundles.build import build
        from edged.bundles.standard_network import request_of

        build(request_of(order), order.out)
    else:
        from edged.bundles.export.mixture import export_mixture

        export_mixture(order)
    return Done()


def main() -> int:
    """Carry out the order on stdin; the exit code."""
    return carry_out((StandardBundleOrder, MixtureOrder), _carry_out)


if __name__ == "__main__":
    sys.exit(main())
