"""A request's tokens are those of the request alone, whatever happens to it and around it.

A crowd of requests runs on a real model in float32, with memory for a few of them. So all that a scheduler and a block
manager can do to a request is done to many; counters say that it was.
"""

from __future__ import annotations

import random

import pytest

import pageant
from pageant.actors.blocks.costs import MoveCosts
from pageant.actors.runtime.disk_file import DiskFile

BLOCK_SIZE = 4
NUM_REQUESTS = 200
OFTEN = 50
LAYER_BYTES = 2 * 2 * BLOCK_SIZE * 16 * 4  # of a block: keys and values, of two heads of 16 float32 each
BLOCK_BYTES = 2 * LAYER_BYTES
HOST_SLOTS = 150


def crowd(vocab_size):
    """Prompts that share stems of any length, and how each is answered."""
    chance = random.Random(11)
    token = lambda: chance.randrange(4, vocab_size)  # noqa: E731
    stems = [[token() for _ in range(70)] for _ in range(6)]
    prompts, params = [], []
    for index in range(NUM_REQUESTS):
        stem = chance.choice(stems)[: chance.randint(0, 70)]
        if index % 4 == 3:  # parts from another somewhere
            stem = prompts[-1][: chance.randint(1, len(prompts[-1]))]
        prompts.append([*stem, *(token() for _ in range(chance.randint(1, 24)))])
        sampling = {} if index % 2 else {"temperature": 1.0, "seed": index, "top_p": 0.9}
        params.append(
            pageant.SamplingParams(
                **({"temperature": 0.0} | sampling), max_tokens=chance.randint(8, 40), ignore_eos=True
            )
        )
    return prompts, params


def engine(checkpoint, **settings):
    return pageant.LLM(
        checkpoint.path,
        placement="one",
        progress=False,
        threads=1,
        dtype="float32",
        block_size=BLOCK_SIZE,
        max_model_len=144,
        **settings,
    )


@pytest.fixture(scope="module")
def asked(checkpoint):
    return crowd(checkpoint.vocab_size)


@pytest.fixture(scope="module")
def alone(checkpoint, asked):
    return tokens_alone(checkpoint, asked)


def tokens_alone(checkpoint, asked):
    """The tokens of each request that nobody is beside, with nothing cached."""
    prompts, params = asked
    with engine(checkpoint, max_num_seqs=1, enable_prefix_caching=False, async_scheduling=False) as llm:
        outputs = llm.generate(prompts, params)
        counters = llm.scheduler_statistics().counters
    assert not counters["preemptions"] and not counters["tokens_cached"] and not counters["chunk_splits"]
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture
def moving_pays(monkeypatch):
    """Let moves always pay: what is quicker for models this small is a matter of chance."""
    monkeypatch.setattr(MoveCosts, "move_pays", lambda self, tokens, *ways: True)


def test_every_request_gets_the_tokens_that_it_gets_alone(checkpoint, asked, alone, moving_pays, tmp_path):
    prompts, params = asked
    with engine(
        checkpoint,
        num_blocks=84,
        max_num_seqs=24,
        max_num_batched_tokens=24,
        host_memory=HOST_SLOTS * BLOCK_BYTES,
        disk_space="64MiB",
        disk_path=str(tmp_path),
    ) as llm:
        outputs = llm.generate(prompts, params)
        scheduler, pool = llm.scheduler_statistics().counters, llm.pool_statistics()
    assert [output.outputs[0].token_ids for output in outputs] == alone
    host, disk = pool.tiers
    assert host.num_blocks == HOST_SLOTS
    happened = {
        **{name: scheduler[name] for name in ("chunk_splits", "preemptions", "swaps", "steps_ahead")},
        "rows beside others": sum(map(len, alone)) - scheduler["steps"],
        "prefix hits": sum(output.num_cached_tokens > 0 for output in outputs),
        "copies on write": pool.blocks_copied,
        "evictions": pool.evictions,
        "blocks saved": host.blocks_saved,
        "blocks restored": host.blocks_restored,
        "blocks written to the disk": disk.blocks_saved,
        "blocks read from the disk": disk.blocks_restored,
    }
    assert {name: count for name, count in happened.items() if count < OFTEN} == {}
    assert pool.blocks_held == 0, "every block is given back"


def test_so_it_does_where_layers_have_blocks_of_their_own(make_checkpoint, asked, moving_pays, tmp_path):
    """Three of four layers have a window."""
    checkpoint, (prompts, params) = make_checkpoint("gemma3"), asked
    with engine(
        checkpoint,
        num_blocks=148,
        max_num_seqs=24,
        max_num_batched_tokens=16,
        host_memory=4 * HOST_SLOTS * LAYER_BYTES,
        disk_space="64MiB",
        disk_path=str(tmp_path),
    ) as llm:
        outputs = llm.generate(prompts, params)
        scheduler, pool = llm.scheduler_statistics().counters, llm.pool_statistics()
    assert [output.outputs[0].token_ids for output in outputs] == tokens_alone(checkpoint, asked)
    host, disk = pool.tiers
    happened = {
        "chunk_splits": scheduler["chunk_splits"],
        "prefix hits": sum(output.num_cached_tokens > 0 for output in outputs),
        "copies on write": pool.blocks_copied,
        "blocks given back": pool.blocks_given_back,
        "blocks restored": host.blocks_restored,
        "blocks read from the disk": disk.blocks_restored,
    }
    assert {name: count for name, count in happened.items() if count < OFTEN} == {}
    assert scheduler["preemptions"] > OFTEN // 4, "few, since so much is given back"
    assert pool.blocks_held == 0, "every block is given back"


def test_a_disk_that_is_full_costs_no_request_its_tokens(
    checkpoint, asked, alone, moving_pays, tmp_path, monkeypatch
):
    """The executor dies of it, and the next one is told how much is left."""
    prompts, params = (column[:80] for column in asked)
    written, write = [], DiskFile.write

    def fill_up(self, at, data):
        written.append(at)
        if len(written) == 20:
            raise OSError(28, "No space left on device")
        write(self, at, data)

    monkeypatch.setattr(DiskFile, "write", fill_up)
    with engine(
        checkpoint,
        num_blocks=60,
        max_num_seqs=12,
        host_memory=40 * BLOCK_BYTES,
        disk_space="1MiB",
        disk_path=str(tmp_path),
    ) as llm:
        outputs = llm.generate(prompts, params)
        counters = llm.scheduler_statistics().counters
    assert [output.outputs[0].token_ids for output in outputs] == alone[:80]
    assert counters["recomputed"] > 0, "by the next executor"
    assert len(written) > 20, "which goes on writing"
