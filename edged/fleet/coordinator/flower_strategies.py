"""Which of Flower's strategies a coordinator runs, and what may be set of them. Flower is not needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_REPLIES = 1000
"""Devices of a round: a strategy holds the replies of all of them, 280 MB for 1,000 of 17,000 parameters."""

_ADAPTIVE = ("eta", "eta_l", "tau")
OPTIONS: dict[str, tuple[str, ...]] = {
    "FedAvg": (),
    "FedProx": (),  # what devices do differently is train.proximal
    "FedAvgM": ("server_learning_rate", "server_momentum"),
    "FedAdagrad": _ADAPTIVE,
    "FedAdam": (*_ADAPTIVE, "beta_1", "beta_2"),
    "FedYogi": (*_ADAPTIVE, "beta_1", "beta_2"),
    "FedMedian": (),
    "FedTrimmedAvg": ("beta",),
    "Krum": ("num_malicious_nodes",),
    "MultiKrum": ("num_malicious_nodes", "num_nodes_to_select"),
    "Bulyan": ("num_malicious_nodes",),
}
"""By class, the arguments that the configuration may give."""

MEMORY = ("m_t", "v_t", "momentum_vector")
"""Attributes in which these strategies remember, by parameter, what the next round needs."""


def problem_of(strategy: str, options: Mapping[str, float]) -> str:
    """What is wrong with a strategy and its options, in words; empty when nothing is.

    >>> problem_of("FedAdam", {"eta": 0.1}), problem_of("FedAvg", {"beta": 0.1})
    ('', 'FedAvg has no option beta')
    """
    if strategy not in OPTIONS:
        return f"{strategy or 'no name'} is none of the strategies {', '.join(OPTIONS)}"
    wrong = [name for name in options if name not in OPTIONS[strategy]]
    return f"{strategy} has no option {wrong[0]}" if wrong else ""
