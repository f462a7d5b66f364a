"""The suites of executors and grammars bite: each planted fault is named by the rule that it breaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import pageant
from pageant.actors.executor.actor import Executor
from pageant.actors.executor.simulated import SimulatedExecutor
from pageant.actors.executor.simulated_runner import SimulatedRunner
from pageant.actors.grammar.actor import Grammar
from pageant.actors.runtime import Actor, receives
from pageant.protocol.arrays import int32, int64
from pageant.protocol.guiding import GuidesLost, TokenMasks
from pageant.protocol.stepping import ExecutorReady, StepPlan, StepResult
from pageant.scripts.conformance import executor as executor_rules
from pageant.scripts.conformance import grammar as grammar_rules
from pageant.scripts.conformance import run
from pageant.scripts.conformance.executor import check_executor
from pageant.scripts.conformance.grammar import check_grammar
from pageant.scripts.conformance.rules import BrokenRule

amended = msgspec.structs.replace
EXAMPLES = Path(pageant.__file__).parent / "docs" / "examples"


@pytest.fixture(autouse=True)
def examples_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))


class NoRole(Actor):
    """An actor that stands in for nobody."""


class Faulty(SimulatedRunner):
    """A runner that does one thing wrong."""

    def launch(self, inputs):
        drawn = super().launch(self.spoil(inputs))
        drawn._token_ids = self.change(inputs, drawn.token_ids())
        return drawn

    def spoil(self, inputs):
        return inputs

    def change(self, inputs, token_ids):
        return token_ids


class Beyond(Faulty):
    def change(self, inputs, token_ids):
        return token_ids + 10**6


class ByNeighbours(Faulty):
    def change(self, inputs, token_ids):
        return token_ids + len(inputs.rows) - 1


class ByStep(Faulty):
    """Draws by how many tokens the step computes."""

    def change(self, inputs, token_ids):
        return token_ids + (1 < len(inputs.token_ids) < 20 and len(inputs.rows) == 1)


class InOrder(Faulty):
    """Takes blocks to lie one after another."""

    def spoil(self, inputs):
        tables = inputs.block_tables[:, :, :1] + np.arange(inputs.block_tables.shape[2])
        return replace(inputs, block_tables=tables.astype(np.int32) % self.num_blocks)


class NoCopies(Faulty):
    def spoil(self, inputs):
        return replace(inputs, copy_sources=int32(), copy_destinations=int32())


class Behind(Faulty):
    """Does not know what the step before drew."""

    def spoil(self, inputs):
        self._last_drawn[:] = 0
        return inputs


class DeafToDrafts(Faulty):
    def change(self, inputs, token_ids):
        return token_ids if inputs.verifying is None else np.full_like(token_ids, token_ids[0])


@pytest.mark.parametrize(
    ("runner", "rule"),
    [
        (Beyond, executor_rules.VOCABULARY),
        (ByNeighbours, executor_rules.BATCH),
        (ByStep, executor_rules.CHUNKS),
        (InOrder, executor_rules.BLOCKS),
        (NoCopies, executor_rules.COPIES),
        (Behind, executor_rules.AHEAD),
        (DeafToDrafts, executor_rules.DRAFTS),
    ],
)
def test_a_runners_fault_is_named(runner, rule):
    class Over(SimulatedExecutor):
        def open_runner(self):
            return runner(self.options, ready=True)

    with pytest.raises(BrokenRule) as broken:
        check_executor(Over)
    assert broken.value.rule == rule, broken.value


class Changing(SimulatedExecutor):
    """An executor whose messages are changed on their way out."""

    def tell(self, address, message):
        for one in self.change(message):
            super().tell(address, one)

    def change(self, message):
        return [message]


class Small(Changing):
    def change(self, message):
        return [amended(message, num_blocks=2) if isinstance(message, ExecutorReady) else message]


class Twice(Changing):
    def change(self, message):
        return [message, message] if isinstance(message, StepResult) else [message]


class Anyone(SimulatedExecutor):
    """Computes for any epoch."""

    @receives
    def compute(self, plan: StepPlan) -> None:
        super().compute(amended(plan, epoch=self.incarnation))


@pytest.mark.parametrize(
    ("cls", "rule"),
    [
        (NoRole, executor_rules.TAKES_ROLE),
        (Small, executor_rules.READY),
        (Twice, executor_rules.ANSWERS),
        (Anyone, executor_rules.EPOCHS),
    ],
)
def test_an_executors_fault_is_named(cls, rule):
    with pytest.raises(BrokenRule) as broken:
        check_executor(cls)
    assert broken.value.rule == rule, broken.value


def test_executors_that_keep_the_rules_pass():
    for cls in (Executor, SimulatedExecutor):
        kept = check_executor(cls)
        assert {executor_rules.STEPS, executor_rules.EPOCHS, executor_rules.LIVES} <= set(kept)


class Masked(Grammar):
    """A grammar whose masks are changed on their way out."""

    def tell(self, address, message):
        super().tell(address, self.change(message))

    def change(self, message):
        return amended(message, bits=self.spoil(message)) if isinstance(message, TokenMasks) else message

    def spoil(self, message):
        return message.bits


class AllowsAll(Masked):
    def spoil(self, message):
        return np.full_like(message.bits, -1)


class AllowsNothing(Masked):
    def spoil(self, message):
        return np.zeros_like(message.bits)


class Elsewhere(Masked):
    def change(self, message):
        return (
            amended(message, positions=message.positions + 1) if isinstance(message, TokenMasks) else message
        )


class Endless(Masked):
    def spoil(self, message):
        bits = message.bits.copy()
        for token in self.options.eos_token_ids:
            bits[:, token // 32] &= ~np.int32(1 << token % 32)
        return bits


class Patient(Masked):
    """Says nothing of what is lost, but that nothing is."""

    def change(self, message):
        return amended(message, guides=int64()) if isinstance(message, GuidesLost) else message


class ByBatch(Masked):
    def spoil(self, message):
        bits = message.bits.copy()
        if len(bits) > 4:
            bits[:, 3] ^= 1
        return bits


class Refusing(Grammar):
    async def _grammar(self, asked):
        from pageant.actors.grammar.errors import GrammarError

        raise GrammarError("not today")


@pytest.mark.parametrize(
    ("cls", "rules"),
    [
        (NoRole, {grammar_rules.TAKES_ROLE}),
        (Refusing, {grammar_rules.COMPILES}),
        (AllowsAll, {grammar_rules.KEEPS, grammar_rules.MASK}),
        (AllowsNothing, {grammar_rules.GOES_ON}),
        (Elsewhere, {grammar_rules.MASK}),
        (Endless, {grammar_rules.ENDS, grammar_rules.GOES_ON}),
        (Patient, {grammar_rules.LOST}),
        (ByBatch, {grammar_rules.APART, grammar_rules.DRAFTS}),
    ],
)
def test_a_grammars_fault_is_named(cls, rules):
    options = {} if cls is NoRole else {"isolate": False}
    with pytest.raises(BrokenRule) as broken:
        check_grammar(cls, **options)
    assert broken.value.rule in rules, broken.value


def test_the_grammar_keeps_the_rules():
    assert set(check_grammar(Grammar, isolate=False)) >= {grammar_rules.ENDLESS, grammar_rules.LEAVES}


@pytest.mark.parametrize(
    ("kind", "name"),
    [("executor", "copying:CopyingExecutor"), ("grammar", "spelled_choices:SpelledChoices")],
)
def test_the_examples_keep_the_rules(kind, name):
    report = run(kind, name)
    assert report.passed, report
