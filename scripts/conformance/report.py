"""Suites by name, and what came of one."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pageant.actors.runtime.classes import load_object
from pageant.protocol.errors import TopologyError
from pageant.scripts.conformance.blocks import check_block_manager
from pageant.scripts.conformance.detokenizer import check_detokenizer
from pageant.scripts.conformance.drafter import check_drafter
from pageant.scripts.conformance.executor import check_executor
from pageant.scripts.conformance.grammar import check_grammar
from pageant.scripts.conformance.policy import check_policy
from pageant.scripts.conformance.pool import check_pool
from pageant.scripts.conformance.rules import BrokenRule
from pageant.scripts.conformance.scheduler import check_scheduler
from pageant.scripts.conformance.tokenizer import check_tokenizer

SUITES: dict[str, Callable[[Any], tuple[str, ...]]] = {
    "blocks": check_block_manager,
    "detokenizer": check_detokenizer,
    "drafter": check_drafter,
    "executor": check_executor,
    "grammar": check_grammar,
    "policy": check_policy,
    "pool": check_pool,
    "scheduler": check_scheduler,
    "tokenizer": check_tokenizer,
}


@dataclass(frozen=True)
class Report:
    """Findings of a suite. `kept` are the rules that were exercised; `broken` says which was broken, and
    `traceback` where, if the component itself raised."""

    kind: str
    cls_name: str
    kept: tuple[str, ...] = ()
    broken: str | None = None
    traceback: str = ""

    @property
    def passed(self) -> bool:
        """Return whether every rule was kept."""
        return self.broken is None

    def __str__(self) -> str:
        if self.broken is not None:
            return f"{self.cls_name} does not conform ({self.kind}): {self.broken}"
        lines = [f"{self.cls_name} conforms ({self.kind}); it keeps these rules:"]
        return "\n".join([*lines, *(f"  - {rule}" for rule in self.kept)])


def run(kind: str, cls_name: str) -> Report:
    """Runs the suite `kind` on the class that `module:Class` names.

    Raises:
        TopologyError: no such suite or class; names the nearest.
    """
    if kind not in SUITES:
        raise TopologyError("conformance", f"no suite {kind!r}; expected one of {', '.join(SUITES)}")
    cls = load_object(cls_name, f"conformance {kind}")
    try:
        return Report(kind, cls_name, kept=SUITES[kind](cls))
    except BrokenRule as error:
        return Report(kind, cls_name, broken=str(error))
    except Exception as error:
        what = f"it raised {type(error).__name__}: {error}"
        return Report(kind, cls_name, broken=what, traceback=traceback.format_exc())
