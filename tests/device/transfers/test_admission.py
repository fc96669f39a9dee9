"""Transfers that waited on the disk are judged by the configuration and the keys of today."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edged.config import Config
from edged.device.transfers.installer import Admission
from edged.errors import RefusedError
from edged.signing import key_id, new_pair, parse_public
from edged.storage.journal.transfers import TransferPurpose
from edged.storage.models.trust import Trust

OPEN: dict[str, Any] = {"weights": {"accept": True}, "install": {}}


def admission(state: Path, **sections: Any) -> Admission:
    values = {"device": {"id": "rig"}, "stream": {"features": 1, "classes": 2}} | sections
    return Admission(Config.model_validate(values), Trust(state))


@pytest.mark.parametrize(
    ("purpose", "section", "reason"),
    [
        (TransferPurpose(), {"weights": {"accept": False}}, "does not accept weights"),
        (TransferPurpose("model"), {"install": None}, "takes no models"),
        (TransferPurpose("bundle"), {"install": None}, "takes no bundles"),
    ],
)
def test_a_configuration_that_takes_less_since(
    tmp_path: Path, purpose: TransferPurpose, section: dict[str, Any], reason: str
) -> None:
    waiting = admission(tmp_path, **OPEN).announced(purpose)
    admission(tmp_path, **OPEN).check(waiting)
    with pytest.raises(RefusedError, match=reason):
        admission(tmp_path, **(OPEN | section)).check(waiting)


def test_weights_need_every_key_that_counted_when_they_were_announced(tmp_path: Path) -> None:
    files = [new_pair(tmp_path / name) for name in ("a", "b", "c")]
    (tmp_path / "state").mkdir()
    trust = Trust(tmp_path / "state")

    def keyed(*keys: Path) -> Admission:
        return admission(
            tmp_path / "state", **OPEN, model={"bundle": "b", "keys": [str(key) for key in keys]}
        )

    waiting = keyed(files[0]).announced(TransferPurpose())
    keyed(files[0], files[1]).check(waiting)
    with pytest.raises(RefusedError, match="when other keys counted"):
        keyed(files[1]).check(waiting)
    trust.replace_key(key_id(files[0]), parse_public(files[2].read_text(), "new"))
    with pytest.raises(RefusedError, match="when other keys counted"):
        keyed(files[0]).check(waiting)
    trust.replace_key(key_id(files[2]), None)
    with pytest.raises(RefusedError, match="when other keys counted"):
        keyed(files[0]).check(waiting)
    keyed(files[0]).check(TransferPurpose("bundle"))
