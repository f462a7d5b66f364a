"""Options of a frontend."""

from __future__ import annotations

from typing import Literal

from pageant.actors.runtime import ActorOptions
from pageant.protocol.fronting import ServedModel

__all__ = ["FrontendOptions"]


class FrontendOptions(ActorOptions, frozen=True, kw_only=True):
    """Options of a frontend.

    Attributes:
        served: the models, the first being that of requests that name none. The topology fills it in.
        otlp_traces_endpoint: with one, requests are traced; see `Observer`.
        traces_sampled: the share of them that is, where the client does not say.
        detailed_traces: tell of every step of theirs.
        while_asleep: what becomes of requests to a model that sleeps: they `wait` for it to be woken, or it is to
            `refuse` them.
        max_loaded_models: requests to a model that sleeps have it loaded; see `Lifecycle`.
    """

    served: tuple[ServedModel, ...]
    otlp_traces_endpoint: str | None = None
    traces_sampled: float = 1.0
    detailed_traces: bool = False
    while_asleep: Literal["wait", "refuse"] = "wait"
    max_loaded_models: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.traces_sampled <= 1:
            raise ValueError(f"traces_sampled is {self.traces_sampled}; expected 0 to 1")
        if self.while_asleep == "refuse" and self.max_loaded_models is not None:
            raise ValueError(
                "while_asleep is refuse, and max_loaded_models has requests load a model; expected wait"
            )
