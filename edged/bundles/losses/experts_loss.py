"""Cross-entropy of each expert of a mixture by itself: they learn side by side, not from their mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edged.bundles.graph.edit import node
from edged.bundles.losses.cross_entropy import CrossEntropy

if TYPE_CHECKING:
    import onnx

    from edged.storage.models.bundles import Tensor


@dataclass(frozen=True)
class ExpertsCrossEntropy(CrossEntropy):
    """The mean cross-entropy of several logits `(batch, classes)` inside the model, which has one label.

    `logits` are the names of their tensors. Labels can be smoothed; classes count the same.
    """

    logits: tuple[str, ...] = ()

    def nodes(self, prediction: Tensor, label: str, output: str) -> list[onnx.NodeProto]:
        """Its nodes; of the output only the number of classes counts."""
        made, target = self.targets(prediction.width, label, len(self.logits))
        whole = ""
        for i, name in enumerate(self.logits):
            made.append(node("LogSoftmax", [name], f"loss.log_prob.{i}", axis=-1))
            if i:
                made.append(node("Add", [whole, f"loss.log_prob.{i}"], f"loss.log_prob.to{i}"))
            whole = made[-1].output[0]
        return [
            *made,
            node("Mul", [whole, target], "loss.each"),
            node("ReduceMean", ["loss.each"], output, keepdims=0),
        ]
