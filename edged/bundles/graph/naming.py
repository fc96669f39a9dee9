"""What the numbers of a model stand for, as far as whoever builds the bundle tells it; and what built it."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from edged.domain.stream.schema import Schema
from edged.engines.runtime.ort import onnxruntime
from edged.errors import ConfigError, one_of
from edged.storage.models.bundles import Bundle


@dataclass(frozen=True)
class Naming:
    """Names and units of the inputs (of the channels, for windows), label names, units of the targets.

    `context` are the half-lives of the means that inputs are put beside, as in `stream.context`. Each may be
    empty. A device whose configuration names something else refuses the bundle.
    """

    features: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    target_units: tuple[str, ...] = ()
    context: tuple[float, ...] = ()

    @classmethod
    def of(cls, schema: Schema) -> Naming:
        """Return the names of a stream's configuration."""
        return cls(schema.names, schema.units, schema.named_classes, schema.target_units, schema.context)

    def given(self, **texts: str | None) -> Naming:
        """With what was given as one text, separated by commas, instead; None leaves what there is."""
        parts: dict[str, Any] = {
            name: tuple(part.strip() for part in text.split(","))
            for name, text in texts.items()
            if text is not None
        }
        return replace(self, **parts)

    def of_model(self, classes: tuple[str, ...]) -> Naming:
        """With the class names that a model carries, if it does; ConfigError when others are given."""
        if classes and self.classes and classes != self.classes:
            raise ConfigError(
                f"the model's classes are {', '.join(classes)}; given: {', '.join(self.classes)}",
                where="--classes", remedy="the model's, in their order",
            )  # fmt: skip
        return replace(self, classes=classes or self.classes)

    def put(self, bundle: Bundle) -> Bundle:
        """The bundle's description with these names.

        Raises ConfigError when there are more or fewer than the model has numbers.
        """
        inputs, result = bundle.input, bundle.output
        for where, found in (("--features", self.features), ("--units", self.units)):
            if found and inputs.width % len(found):
                raise _count(where, found, f"{inputs.width} inputs")
        if self.features and self.units and len(self.features) != len(self.units):
            raise _count("--units", self.units, f"{len(self.features)} named inputs")
        outputs = 2 if bundle.loss == "bce_with_logits" and result.width == 1 else result.width
        if self.classes and len(self.classes) != outputs:
            raise _count("--classes", self.classes, f"{outputs} classes")
        if self.target_units and len(self.target_units) != result.width:
            raise _count("--target-units", self.target_units, f"{result.width} outputs")
        if len(set(self.features)) < len(self.features) or len(set(self.classes)) < len(self.classes):
            raise ConfigError("a name comes twice", where="--features, --classes")
        return replace(
            bundle,
            context=self.context,
            input=replace(inputs, names=self.features, units=self.units),
            output=replace(result, names=self.classes, units=self.target_units),
        )


def _count(where: str, found: tuple[str, ...], wanted: str) -> ConfigError:
    what = f"{len(found)} names ({one_of(found)}), the model has {wanted}"
    return ConfigError(what, where=f"{where}, or --config", remedy="give one for each, separated by commas")


def made_with() -> dict[str, str]:
    """Versions of what builds bundles here."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnx": str(onnx.__version__),
        "onnxruntime": str(onnxruntime.__version__),
    }
