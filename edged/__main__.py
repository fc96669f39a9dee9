"""`python -m edged`."""

import sys

from edged.cli.main import main

sys.exit(main())
