"""A recipe file: what is trained on recorded data, in which variants, and how the data is split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from edged.config.stream import StreamConfig
from edged.config.values import Name, Section, unique
from edged.domain.standard_bundle import NetworkKind
from edged.domain.training.optimizers import OPTIONS, misfit

MOST_TRIALS = 2000
METRICS = {
    "classify": ("accuracy", "balanced_accuracy", "kappa"),
    "regress": ("mae", "rmse", "r2"),
    "forecast": ("mae", "rmse", "r2"),
    "reconstruct": ("mae", "rmse", "r2", "auroc"),
}
LOSSES = {"classify": ("cross_entropy", "bce_with_logits")}
MEASURING = ("mse", "l1")


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _lists(value: Any) -> Any:
    """A list of lists; one list, or one value, is a single variant."""
    values = _listed(value)
    return values if values and all(isinstance(item, list) for item in values) else [values]


def _no_twins(values: list[Any]) -> list[Any]:
    unique([tuple(value) if isinstance(value, list) else value for value in values])
    return values


_T = TypeVar("_T")
# One value or several: each of several is a variant.
_Few = Annotated[
    list[_T], Field(min_length=1, max_length=100), AfterValidator(_no_twins), BeforeValidator(_listed)
]
_Lists = Annotated[
    list[list[_T]], Field(min_length=1, max_length=100), AfterValidator(_no_twins), BeforeValidator(_lists)
]
_Layer = Annotated[int, Field(ge=1, le=65_536)]
_Rate = Annotated[float, Field(gt=0, lt=10)]
_Rows = Annotated[int, Field(ge=1, le=65_536)]
_Epochs = Annotated[int, Field(ge=1, le=10_000)]
_Steps = Annotated[int, Field(ge=0)]
_Positive = Annotated[float, Field(ge=0)]
_Momentum = Annotated[float, Field(ge=0, lt=1)]
_Beta2 = Annotated[float, Field(gt=0, lt=1)]
_Epsilon = Annotated[float, Field(gt=0)]
_Replay = Annotated[float, Field(ge=0, lt=1)]
_Loss = Literal["cross_entropy", "bce_with_logits", "mse", "l1"]
_Optimizer = Literal["adamw", "adamw_pytorch", "sgd", "sgd_momentum"]
_Schedule = Literal["constant", "linear"]


class RecipeConfig(Section):
    """One recipe; a list of values stands for as many recipes, and several lists for all combinations."""

    name: Name | None = Field(None, description="what it is called; made of what differs when absent")
    network: _Few[NetworkKind] | None = Field(
        None, description="kind of a standard network; the task's own when absent"
    )
    model: _Few[Path] | None = Field(
        None, description="an ONNX file instead of a standard network; relative to the recipe file"
    )
    standardise: _Few[bool | None] = Field(
        [None],
        description="put the mean and spread of the training part in front of the network; true for standard"
        " networks, false for a model of one's own when absent",
    )
    hidden: _Lists[_Layer] | None = Field(
        None, description="layers of the network: [64, 32]; a list of such lists for variants"
    )
    loss: _Few[_Loss] | None = Field(None, description="cross_entropy for classes, else mse when absent")
    optimizer: _Few[_Optimizer] = Field(["adamw"], description="what makes the updates")
    learning_rate: _Few[_Rate] = Field([1e-3], description="of the optimizer")
    schedule: _Few[_Schedule] = Field(
        ["constant"], description="learning rate: constant, or falling to 0 at the end"
    )
    warmup: _Few[_Steps] = Field([0], description="steps of linear warm-up")
    batch: _Few[_Rows] = Field([64], description="samples in one training batch")
    epochs: _Few[_Epochs] = Field([20], description="how often as many samples as there are")
    patience: _Few[_Epochs | None] = Field(
        [None],
        description="epochs without a better validation metric after which it ends, with the best weights;"
        " when absent it goes on to the end and keeps the last ones",
    )
    weight_decay: _Few[_Positive | None] = Field(
        [None], description="of the optimizer; its own default when absent"
    )
    clip_norm: _Few[_Positive] = Field([0.0], description="largest gradient norm; 0 for any")
    momentum: _Few[_Momentum | None] = Field([None], description="of sgd_momentum; 0.9 when absent")
    dampening: _Few[_Momentum | None] = Field([None], description="of sgd_momentum; 0 when absent")
    nesterov: _Few[bool | None] = Field([None], description="Nesterov's form of sgd_momentum")
    beta1: _Few[_Momentum | None] = Field([None], description="of both forms of adamw; 0.9 when absent")
    beta2: _Few[_Beta2 | None] = Field([None], description="of both forms of adamw; 0.999 when absent")
    epsilon: _Few[_Epsilon | None] = Field(
        [None], description="of both forms of adamw; 1e-6, and 1e-8 for adamw_pytorch, when absent"
    )
    bias_correction: _Few[bool | None] = Field([None], description="of adamw; true when absent")
    train: _Lists[str] = Field(
        [[]], description="parameters to train, by glob: layer3.*; or last:2; all when empty"
    )
    freeze: _Lists[str] = Field([[]], description="parameters that keep their first values, by glob")
    replay_share: _Few[_Replay | None] = Field(
        [None],
        description="learn in the order of time, an epoch a stretch of the stream, with this share of each"
        " batch drawn from earlier stretches; all samples are shuffled when absent",
    )

    @model_validator(mode="after")
    def _combinations(self) -> RecipeConfig:
        if self.network is not None and self.model is not None:
            raise ValueError("network and model exclude each other: make two recipes of them")
        if self.model is not None and self.hidden is not None:
            raise ValueError("hidden is for standard networks, not for a model of one's own: remove it")
        if any(p is not None for p in self.patience) and any(s is not None for s in self.replay_share):
            raise ValueError("patience would leave the last stretches out of replay: remove one of them")
        given = {
            option: next((v for v in getattr(self, option) if v is not None), None) for option in OPTIONS
        }
        if problem := misfit(self.optimizer, given):
            raise ValueError(f"{problem}; make two recipes of them")
        return self


class SplitConfig(Section):
    """How the recorded stream is split, in the order of time: what is judged on always comes later."""

    train: float = Field(0.6, gt=0, lt=1, description="share of the samples that is trained on, the oldest")
    validation: float = Field(0.2, gt=0, lt=1, description="share that recipes are ranked by")
    test: float = Field(0.2, ge=0, lt=1, description="share of the newest, on which no choice is made")
    gap: int | None = Field(
        None,
        ge=0,
        description="samples left out between two parts; as many as windows or a forecast reach over"
        " when absent",
    )

    @model_validator(mode="after")
    def _within_the_whole(self) -> SplitConfig:
        if self.train + self.validation + self.test > 1 + 1e-9:
            raise ValueError("train, validation and test are shares of the whole: together at most 1")
        return self


class DeployConfig(Section):
    """What the device trains of the winner's bundle; what the recipe has trained when both are absent."""

    train: list[str] | None = Field(
        None, description="parameters that the device trains, by glob, or last:N for the N last layers"
    )
    freeze: list[str] | None = Field(None, description="parameters that the device never changes, likewise")


class RecipeFile(Section):
    """A recipe file: recipes, and the stream they are for."""

    name: Name = Field(
        "recipes", description="what it is called; the device's name in a written configuration"
    )
    stream: StreamConfig = Field(description="the section stream of a device's configuration")
    split: SplitConfig = SplitConfig()
    seeds: int = Field(3, ge=1, le=100, description="how often each recipe is trained, from other weights")
    metric: Literal["accuracy", "balanced_accuracy", "kappa", "mae", "rmse", "r2", "auroc"] | None = Field(
        None, description="what recipes are ranked by; balanced_accuracy for classes, else mae when absent"
    )
    engine: Literal["auto", "native", "portable"] = Field("auto", description="what executes training steps")
    threads: int = Field(1, ge=1, le=256, description="threads of one training step")
    timeout: float = Field(3600.0, gt=0, description="seconds after which a single training is given up")
    deploy: DeployConfig = DeployConfig()
    recipes: list[RecipeConfig] = Field(min_length=1, description="what is trained")

    @model_validator(mode="after")
    def _fit_the_task(self) -> RecipeFile:
        task = self.stream.resolved_task
        if self.metric is not None and self.metric not in METRICS[task]:
            raise ValueError(
                f"metric {self.metric} is not for task {task}: one of {', '.join(METRICS[task])}"
            )
        for position, recipe in enumerate(self.recipes):
            problem = self._misfit(recipe, task)
            if problem:
                raise ValueError(f"recipes.{position}: {problem}")
        return self

    def _misfit(self, recipe: RecipeConfig, task: str) -> str:
        """What of a recipe is not for the stream; nothing when all is."""
        losses = LOSSES.get(task, MEASURING)
        wrong = [loss for loss in recipe.loss or [] if loss not in losses]
        if wrong:
            return f"loss {wrong[0]} is not for task {task}: {' or '.join(losses)}"
        networks = recipe.network or []
        if task == "reconstruct" and set(networks) - {"autoencoder"}:
            return "the network of a reconstruction is an autoencoder"
        if task != "reconstruct" and "autoencoder" in networks:
            return f"an autoencoder is not for task {task}"
        if self.stream.window is None and set(networks) & {"cnn1d", "gru"}:
            return "cnn1d and gru take windows: add stream.window, or take an mlp"
        return ""

    @property
    def judged_by(self) -> str:
        """The metric that recipes are ranked by."""
        if self.metric is not None:
            return self.metric
        return "balanced_accuracy" if self.stream.resolved_task == "classify" else "mae"
