"""`edged fleet flower-app`: a directory that `flwr run` takes."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING

from edged import __version__
from edged.errors import StorageError
from edged.fleet.flower.compat import VERSION
from edged.storage.files.atomic import disk_errors

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = "edged_flower"
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "edged-flower"
version = "{edged}"
description = "Rounds of a fleet of edged daemons over Flower"
license = {{ file = "LICENSE" }}
dependencies = ["flwr>={flower},<1.42"]

[tool.flwr.app]
publisher = "edged"
fab-format-version = 1
flwr-version-target = "{flower}"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]
# The coordinator's configuration (docs/fleet.md), on the machine of the SuperLink.
fleet-config = {config}
"""
LICENSE = """\
Licensed under the Apache License, Version 2.0: https://www.apache.org/licenses/LICENSE-2.0
SPDX-License-Identifier: Apache-2.0
"""


def write_app(folder: Path, config: Path) -> list[str]:
    """Write the app into a directory that is new or empty; the names of its files.

    `config` is the coordinator's, as the machine sees it on which the SuperLink runs.

    Raises
    ------
    StorageError
        When something is there already, or the disk refuses.
    """
    source = files("edged.fleet.flower.app")
    texts = {f"{PACKAGE}/{name}.py": source.joinpath(f"{name}.py").read_text("utf-8")
             for name in ("client_app", "server_app")}  # fmt: skip
    texts[f"{PACKAGE}/__init__.py"] = '"""Rounds of a fleet of edged daemons over Flower."""\n'
    texts["LICENSE"] = LICENSE
    texts["pyproject.toml"] = PYPROJECT.format(
        edged=__version__, flower=VERSION, package=PACKAGE, config=json.dumps(str(config))
    )
    with disk_errors("writing", folder):
        if folder.exists() and any(folder.iterdir()):
            raise StorageError("this directory is not empty", where=str(folder), remedy="name a new one")
        (folder / PACKAGE).mkdir(parents=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    return sorted(texts)
