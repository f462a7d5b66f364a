"""Recorded kernel calls, made again: the same bits, in memory that is shared, and nothing from outside."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pageant.kernels.cpu import recorded_torch
from pageant.kernels.cpu.recording import NotRecordable


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_calls_are_made_again_on_what_is_there_now(leveled, dtype):
    weight, norm = torch.randn(96, 64).to(dtype), torch.randn(64).to(dtype)
    x = torch.randn(3, 64).to(dtype)

    def run():
        normed, _ = leveled.add_rms_norm(x, x, norm, 1e-6)
        return leveled.add_rms_norm(
            leveled.silu_and_mul(leveled.linear(normed, weight)), x[:, :48], norm[:48], 1e-5
        )[1]

    again = leveled.capture(run)
    for _ in range(3):
        x.copy_(torch.randn(3, 64))
        expected = run()
        assert torch.equal(again(), expected)


SLOTS, EXPECTED, WEIGHT = torch.tensor([1, -1, 0]), torch.tensor([7, 9, 8]), torch.ones(4)


def gate_of(cpu, patience, *, ends=True):
    """A recording of a gate, where places 1 and 0 of `table` are to become 7 and 8, and of a norm of `x` behind it."""
    table, x = torch.tensor([8, 7, 0]), torch.randn(1, 4)
    normed = []

    def run():
        came = cpu.gate(table, SLOTS, EXPECTED, patience, ends=ends)
        normed.append(cpu.rms_norm(x, WEIGHT, 1e-6))
        return came

    return cpu.capture(run), table, x, normed[0]


def test_a_gate_lets_through_what_has_come_and_ends_the_recording_where_patience_does(cpu):
    patience = torch.tensor([0, 0, 5_000, 0])
    again, table, x, normed = gate_of(cpu, patience)
    before = normed.clone()
    x.copy_(torch.randn(1, 4))
    table[0] = 0
    assert again().tolist()[:2] == [0, 0], "nobody waits for one"
    table[1] = 0
    came, waited, _ = again().tolist()
    assert not came and waited >= 5_000
    assert torch.equal(normed, before), "what comes after the gate has been left out"
    table[:2] = torch.tensor([8, 7])
    assert again().tolist()[:2] == [1, 0]
    assert torch.equal(normed, cpu.rms_norm(x, torch.ones(4), 1e-6))


def test_a_gate_that_does_not_end_the_recording_only_says_what_came(cpu):
    patience = torch.zeros(4, dtype=torch.int64)  # the recording has its address: it is kept
    again, table, x, normed = gate_of(cpu, patience, ends=False)
    x.copy_(torch.randn(1, 4))
    table[0] = 0
    assert again().tolist()[0] == 0
    assert torch.equal(normed, cpu.rms_norm(x, torch.ones(4), 1e-6))
    table[:2] = torch.tensor([8, 7])
    assert again().tolist()[0] == 1


def test_a_gate_waits_for_another_thread(cpu):
    patience = torch.full((4,), 10**11)
    again, table, *_ = gate_of(cpu, patience)
    table[:2] = 0
    begins = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(lambda: (begins.set(), again().tolist())[1])
        begins.wait()
        table[1] = 7
        table[0] = 8
        came, *_ = outcome.result()
    assert came


def test_every_kind_of_argument_crosses(cpu):
    """Reals among words, missing pointers and truth values: 20 words and a real."""
    torch.manual_seed(0)
    key_cache, value_cache = torch.zeros(2, 4, 2, 4, 16)
    query, key, value = torch.randn(5, 6, 16), torch.randn(5, 2, 16), torch.randn(5, 2, 16)
    slots = torch.tensor([3, 1, 15, 8, 0])
    table, identity = torch.randn(32, 16), torch.eye(16)

    def run():
        turned = cpu.linear(query.view(-1, 16), identity).view(query.shape)
        cpu.rope_and_write_kv(turned, key, value, table, slots, key_cache, value_cache, slots)
        return turned

    again = cpu.capture(run)
    expected = run(), key_cache.clone(), value_cache.clone()
    key_cache.zero_(), value_cache.zero_()
    assert all(torch.equal(a, b) for a, b in zip((again(), key_cache, value_cache), expected, strict=True))


@pytest.mark.parametrize(
    "between",
    [
        lambda x: x + x,
        lambda x: (x * 3).mul_(x),
        lambda x: x.t().reshape(-1, 8),
        lambda x: x.t().contiguous(),
        lambda x: torch.cat([x.double().sigmoid().float()[:, :4], x.view(8, 2, 4)[:, 1]], dim=1),
        lambda x: x.topk(3, dim=-1)[0].argsort(dim=-1, descending=True, stable=True) + x[:, :3],
        lambda x: x.masked_fill(
            torch.ones_like(x, dtype=torch.bool).scatter_(1, x[:, :2].long().clamp_(0, 7), False), 2
        ),
    ],
)
@torch.inference_mode()
def test_what_torch_computes_in_between_is_computed_again(cpu, between):
    x, weight = torch.randn(8, 8), torch.randn(8, 8)

    def run():
        made = between(cpu.linear(x, weight))
        return between(cpu.linear(made[:, :1].expand(8, 8).contiguous(), weight))

    again = cpu.capture(run)
    for _ in range(2):
        x.copy_(torch.randn(8, 8))
        assert torch.equal(again(), run())


@pytest.mark.parametrize(
    "outside",
    [
        lambda x: torch.nn.functional.linear(x, x),
        lambda x: torch.zeros(8, 8),
        lambda x: x.sub_(1),
        lambda x: x[x[:, 0] > 0],
        lambda x: x * torch.tensor([2.0]),
        lambda x: x * float(x[0, 0]),
    ],
)
def test_what_cannot_be_computed_again_is_refused_and_harms_nothing(cpu, outside):
    x = torch.randn(8, 8)
    with pytest.raises(NotRecordable, match="aten"):
        cpu.capture(lambda: cpu.silu_and_mul(outside(x)))
    assert torch.equal(cpu.capture(lambda: cpu.silu_and_mul(x))(), cpu.silu_and_mul(x))


def test_the_reference_is_not_recorded_where_it_may_look_at_numbers(cpu):
    experts = torch.zeros(2, 1, dtype=torch.int64)
    stack = torch.randn(1, 4, 4, dtype=torch.float64)
    x, ones = torch.randn(2, 4, dtype=torch.float64), torch.ones(2, 1)
    with pytest.raises(NotRecordable, match="the reference computes moe"):
        cpu.capture(lambda: cpu.moe(x, stack, stack[..., :2], ones, experts, "silu"))


def test_an_operation_of_torch_that_fails_ends_the_replay_and_is_raised(cpu, monkeypatch):
    x, weight = torch.randn(1, 4), torch.ones(4)
    fails, normed = [], []

    def multiply(out, *factors, **named):
        if fails:
            raise MemoryError("none left")
        torch.mul(*factors, out=out)

    monkeypatch.setitem(recorded_torch._INTO, torch.ops.aten.mul.Tensor, None)
    monkeypatch.setitem(recorded_torch._OTHERS, torch.ops.aten.mul.Tensor, multiply)

    def run():
        normed.append(cpu.rms_norm(x * 2.0, weight, 1e-6))
        return normed[-1]

    again = cpu.capture(run)
    before = again().clone()
    x.copy_(torch.randn(1, 4))
    fails.append(True)
    with pytest.raises(MemoryError, match="none left"):
        again()
    assert torch.equal(normed[0], before), "what comes after it has been left out"
    fails.clear()
    assert torch.equal(again(), cpu.rms_norm(x * 2.0, weight, 1e-6))


def test_recording_does_not_load_torchs_compiler():
    """Loading takes more than a second, and would take it from the first request."""
    script = """
import sys, torch
from pageant.kernels.cpu.arena import Arena
from pageant.kernels.cpu.recording import Recorder
with Recorder(Arena(lasting=True), [], lambda: None):
    torch.empty(4)[:2]
print(sorted({"torch._dynamo", "torch._inductor"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
