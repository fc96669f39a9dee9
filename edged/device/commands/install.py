"""The commands `bundle.install` and `model.install`: from chunks over MQTT, or from an allowed address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.errors import ConfigError, RefusedError

if TYPE_CHECKING:
    from edged.config import InstallConfig
    from edged.device.commands.announce import TransferCommands


class InstallCommands:
    """`bundle.install` and `model.install`: open transfers of bundles and models.

    Parameters
    ----------
    config
        Section `install`.
    signed
        Whether only signed content is accepted; only bundles can be signed.
    transfers
        Opens the transfers.
    """

    def __init__(self, config: InstallConfig, transfers: TransferCommands, *, signed: bool) -> None:
        self._config = config
        self._transfers = transfers
        self._signed = signed

    def install_bundle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Announce a bundle file or report the state of its transfer.

        Takes `transfer`, a name that the sender chooses, and either `manifest` (`bytes`, `sha256`, `chunks`),
        to send the chunks over MQTT, or `url` with `bytes` and `sha256`, to have the device download it.

        Raises
        ------
        ConfigError
            When a field is not valid.
        RefusedError
            When bundles or the address are not accepted, this one is too large, or another transfer is open.
        """
        return self._install("bundle", request)

    def install_model(self, request: dict[str, Any]) -> dict[str, Any]:
        """Announce a model file of the network that the device uses; fields and errors as for a bundle.

        Raises
        ------
        RefusedError
            Also if only signed content is accepted.
        """
        if self._signed:
            raise RefusedError(
                "this device takes signed bundles only, and a model file has no signature",
                where="model.keys",
                remedy="send a signed bundle with bundle.install",
            )
        return self._install("model", request)

    def _install(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        if not self._config.accept:
            raise RefusedError(
                f"this device takes no {kind}s", where="install.accept", remedy="set it to true"
            )
        url, manifest = request.get("url"), request.get("manifest")
        if url is not None:
            self._check(url)
            whole = {"bytes": request.get("bytes"), "sha256": request.get("sha256")}
            manifest = {**whole, "chunks": [whole]}
        note = {"kind": kind, "url": url}
        return self._transfers.announce(
            request["transfer"], manifest, note, self._config.max_bytes, fetched=url is not None
        )

    def _check(self, url: str) -> None:
        if not url.isascii() or not url.isprintable() or " " in url:
            raise ConfigError("is no address", where="url")
        path = url.partition("://")[2].partition("/")[2]
        plain = not set(path) & set("?#%\\@") and ".." not in path.split("/")
        if not plain or not url.startswith(tuple(self._config.urls)):
            raise RefusedError(
                "nothing is fetched from this address", where=url[:200], remedy="add it to install.urls"
            )
