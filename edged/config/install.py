"""Section `install`: bundles that come over the network."""

from __future__ import annotations

from pydantic import Field, field_validator

from edged.config.values import Duration, Section, Size

LOOPBACK = (
    "http://127.0.0.1:",
    "http://127.0.0.1/",
    "http://localhost:",
    "http://localhost/",
    "http://[::1]",
)


class InstallConfig(Section):
    """Bundles and models that come over the network (commands `bundle.install`, `model.install`)."""

    accept: bool = Field(
        False, description="take bundles and models with the commands `bundle.install` and `model.install`"
    )
    urls: list[str] = Field(
        [],
        description="what the addresses that bundles may be fetched from begin with; https, with a path: "
        "`https://fleet.example/bundles/`",
    )
    max_bytes: Size = Field(32 * 1024**2, ge=1024, description="cap of one bundle, also unpacked")
    timeout: Duration = Field(60.0, gt=0, description="of fetching a bundle, and of each wait within")

    @field_validator("urls")
    @classmethod
    def _safe(cls, urls: list[str]) -> list[str]:
        for url in urls:
            scheme, _, rest = url.partition("://")
            if scheme != "https" and not url.startswith(LOOPBACK):
                raise ValueError(f"{url!r} is neither https nor on this machine")
            if "/" not in rest:
                raise ValueError(f"{url!r} would also allow hosts that begin like it: end it with /")
        return urls
