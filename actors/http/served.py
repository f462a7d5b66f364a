"""The models of a server, and their adapters, which are models to clients too, as they are now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pageant.actors.frontend.prompts import Limits
from pageant.actors.http.errors import NotFound
from pageant.actors.http.tenants import caller
from pageant.actors.parsers.formats import NO_FORMATS, Formats

__all__ = ["Models", "Served"]


@dataclass(frozen=True)
class Served:
    """A model that is served, or an adapter of one, which is another model to clients.

    Attributes:
        name: what it is called outside.
        replica: before its actors' names.
        max_new_tokens: of an answer whose request does not say; None is as many as fit.
        formats: of its calls, and of what it thinks.
        parent: of an adapter, the name of its model.
        tokenizer_config: what `tokenizer_config.json` says; None where there is no tokenizer.
        aliases: further names of a model.
        owner: the tenant whose adapter it is; None is the operator's, for everybody.
        end_tokens: the model's.
    """

    name: str
    replica: str
    limits: Limits
    max_new_tokens: int | None
    formats: Formats = NO_FORMATS
    parent: str | None = None
    tokenizer_config: Mapping[str, Any] | None = None
    aliases: tuple[str, ...] = ()
    owner: str | None = None
    end_tokens: tuple[int, ...] = ()

    @property
    def adapter(self) -> str | None:
        """The adapter that computes it."""
        return None if self.parent is None else self.name

    def with_adapters(self, owners: Mapping[str, str]) -> list[Served]:
        """A model, and each of its adapters, some of which have owners."""
        return [
            self,
            *(
                replace(self, name=name, parent=self.name, aliases=(), owner=owners.get(name))
                for name in self.limits.adapters
            ),
        ]


class Models:
    """Found by name. An adapter that belongs to a tenant is there for that tenant and for operators alone."""

    def __init__(self, models: Sequence[Served]) -> None:
        self._parents = {one.name: one for one in models}
        self._first = models[0].name
        self._aliases = {alias: model.name for model in reversed(models) for alias in model.aliases}
        self._owners: dict[str, dict[str, str]] = {}  # by replica: of adapters, by name
        self._all: dict[str, Served] = {}
        self._gather()

    def _gather(self) -> None:
        self._all = {
            one.name: one
            for parent in self._parents.values()
            for one in parent.with_adapters(self._owners.get(parent.replica, {}))
        }

    @property
    def default(self) -> Served:
        """The model of requests that name none."""
        return self._parents[self._first]

    def visible(self) -> dict[str, Served]:
        """Return the models that the present caller may see, by name."""
        who = caller()
        return {name: one for name, one in self._all.items() if one.owner is None or who.owns(one.owner)}

    def find(self, name: str | None) -> Served:
        """The model of a name; without one, the default.

        Raises:
            NotFound: no such model is there for the caller at hand.
        """
        if name is None:
            return self.default
        served = self._all.get(name) or self._all.get(self._aliases.get(name, ""))
        if served is None or not (served.owner is None or caller().owns(served.owner)):
            known = ", ".join(repr(one) for one in self.visible())
            raise NotFound(f"no model {name!r:.200} is served; expected {known}", "model", "model_not_found")
        return served

    def fit(
        self, replica: str, max_model_len: int, adapters: Iterable[str], owners: Mapping[str, str]
    ) -> None:
        """Take over how a model is served: how long requests may be, and which adapters there are."""
        for name, one in self._parents.items():
            if one.replica == replica:
                limits = replace(one.limits, max_model_len=max_model_len, adapters=tuple(adapters))
                self._parents[name] = replace(one, limits=limits)
        self._owners[replica] = dict(owners)
        self._gather()
