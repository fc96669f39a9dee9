"""The Python API of edged: evaluate, compare, feed, build, and read a state directory.

```python
from edged import api

report = api.evaluate("press.yaml", frame)
with api.open_state("/var/lib/edged") as state:
    samples = state.samples(limit=1000)
```

Names in `__all__`, their parameters and the fields of their results are stable from 1.0 on: later versions
add, never rename. All else in the package `edged` may change. Errors are `EdgedError`, whose text is one
line. Importing this package loads neither onnxruntime nor pandas; each function loads what it needs.

`config` is the path of a configuration file, or a mapping with the same sections. `data` is the path of a
recorded stream in any format of `edged import`; or a data frame of pandas or polars, a table of pyarrow, or
a mapping of columns by name. All are read by the same rules: features are found by name, and the columns
`label`, `time` and `key` have their usual names.
"""

from __future__ import annotations

from edged.api.models import BuiltBundle, build, new_model
from edged.api.replays import FeedResult, compare, evaluate, feed
from edged.api.state import Figures, State, open_state
from edged.errors import ConfigError, EdgedError

__all__ = [
    "BuiltBundle", "ConfigError", "EdgedError", "FeedResult", "Figures", "State", "build", "compare",
    "evaluate", "feed", "new_model", "open_state",
]  # fmt: skip
