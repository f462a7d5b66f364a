"""Actors are swapped while requests stream: for another class, for the same, for other options, for one that cannot
start. Nobody loses a token."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest

import pageant
from pageant import SamplingParams
from pageant.protocol.errors import DeadlineExceeded, RemoteError, StartupError
from pageant.scripts.chaos.load import Load, mixed_requests, undisturbed

SETTINGS = {"dtype": "float32", "threads": 1, "num_blocks": 128, "max_num_seqs": 32, "seed": 5}
PARAMS = SamplingParams(temperature=0.9, seed=3, max_tokens=60, ignore_eos=True)
PROMPTS = [list(range(40, 60 + extra)) for extra in range(4)]
KINDS = {
    "scheduler": "pageant.actors.scheduler.actor:Scheduler",
    "blocks": "pageant.actors.blocks.actor:BlockManager",
    "detokenizer": "pageant.actors.detokenizer.actor:Detokenizer",
    "tokenizer": "pageant.actors.tokenizer:Tokenizer",
    "grammar": "pageant.actors.grammar.actor:Grammar",
    "drafter": "pageant.actors.drafter.actor:DrafterActor",
    "observer": "pageant.actors.observer.actor:Observer",
    "executor/0": "pageant.actors.executor.actor:Executor",
}
SPECULATION = {"method": "ngram", "adaptive": False}
ASKED = mixed_requests(17, 30)  # one of each kind
SWAPS = 8


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> str:
    """Classes of a user's own: one of each kind that works, and one that cannot start."""
    folder = tmp_path_factory.mktemp("lab")
    source = "import asyncio\n"
    for cls in KINDS.values():
        module, name = cls.split(":")
        source += textwrap.dedent(f"""
            from {module} import {name}

            class My{name}({name}):
                pass

            class Bad{name}({name}):
                async def on_start(self):
                    raise ValueError("not today")

            class Slow{name}({name}):
                async def on_start(self):
                    await asyncio.Event().wait()
        """)
    (folder / "swap_lab.py").write_text(source)
    sys.path.insert(0, str(folder))
    yield "swap_lab"
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def engine(checkpoint, lab) -> Iterator[pageant.Engine]:
    """All that can be swapped, side by side, in one process."""
    engine = pageant.Engine(
        checkpoint.path, placement="one", **SETTINGS, speculation=SPECULATION, actors={"observer": {}}
    )
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(scope="module")
def right(engine) -> list[pageant.RequestOutput]:
    """Return the outputs of all requests undisturbed."""
    return asyncio.run(undisturbed(engine, ASKED))


@pytest.mark.parametrize("actor", list(KINDS))
async def test_swaps_under_load_lose_nothing(engine, right, lab, actor):
    name = KINDS[actor].split(":")[1]
    classes = itertools.cycle((f"{lab}:My{name}", f"{lab}:My{name}", f"{lab}:Bad{name}", KINDS[actor]))
    load = Load(engine, ASKED, right)
    load.begin()
    incarnations = [1]
    async with asyncio.timeout(60):
        for cls in itertools.islice(classes, SWAPS):
            await load.all_have_moved(time.monotonic())
            if ":Bad" in cls:
                with pytest.raises(StartupError, match=f"{actor} goes on as it was: ValueError: not today"):
                    await engine.swap(actor, cls)
            else:
                incarnations.append(await engine.swap(actor, cls))
        await load.end()
    assert load.lost == [] and load.changed == []
    assert load.requests >= len(ASKED)
    assert incarnations == sorted(set(incarnations)) and len(incarnations) == 1 + SWAPS * 3 // 4


@pytest.mark.parametrize("actor", ["scheduler", "executor/0"])
async def test_a_successor_that_never_starts_gives_way_in_time(engine, right, lab, actor):
    load = Load(engine, ASKED, right)
    load.begin()
    with pytest.raises(DeadlineExceeded, match=r"did not answer SwapActor within 0.1 s"):
        await engine.swap(actor, f"{lab}:Slow{KINDS[actor].split(':')[1]}", timeout=0.1)
    await load.all_have_moved(time.monotonic())
    await engine.swap(actor, KINDS[actor])
    await load.end()
    assert load.lost == [] and load.changed == []


async def test_options_are_changed_in_another_process_too(checkpoint):
    async with pageant.Engine(checkpoint.path, placement="each", **SETTINGS) as engine:
        before = (await engine.complete(PROMPTS[0], PARAMS)).outputs[0].token_ids
        assert await engine.swap("scheduler", options={"policy": "shortest"}) == 2
        assert (await engine.complete(PROMPTS[0], PARAMS)).outputs[0].token_ids == before


def test_a_script_swaps_too(checkpoint):
    with pageant.LLM(checkpoint.path, placement="one", progress=False, **SETTINGS) as llm:
        prompts, cached = [list(range(3, 40))], []
        for incarnation, caching in enumerate((False, True), start=2):
            assert llm.swap("blocks", options={"enable_prefix_caching": caching}) == incarnation
            cached += [llm.generate(prompts, PARAMS)[0].num_cached_tokens for _ in range(2)]
    assert cached[:3] == [0, 0, 0] and cached[3] > 0


@pytest.mark.parametrize(
    ("actor", "cls", "options", "words"),
    [
        ("scheduler", "nowhere:Nobody", {}, "no module 'nowhere'"),
        ("scheduler", KINDS["blocks"], {}, "does not take the role of scheduler"),
        ("scheduler", "", {"polizy": "fcfs"}, "did you mean 'policy'"),
        ("scheduler", "", {"max_num_seqs": 0}, "expected at least 1"),
        ("frontend", "", {}, "holds its users' requests"),
    ],
)
async def test_what_cannot_be_is_said_before_anything_is_touched(checkpoint, actor, cls, options, words):
    async with pageant.Engine(checkpoint.path, placement="one", **SETTINGS) as engine:
        with pytest.raises(RemoteError, match=words):
            await engine.swap(actor, cls, options)
        statistics = (await engine.statistics())[0]
        assert statistics.actors[actor].incarnation == 1


async def test_the_command_swaps_an_actor_of_a_running_topology(checkpoint, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # where no other topology of this process is known
    async with pageant.Engine(checkpoint.path, placement="each", **SETTINGS) as engine:
        command = [sys.executable, "-m", "pageant", "swap", "--topology", str(os.getpid())]
        found = []
        module = "from pageant.actors.detokenizer import Detokenizer\n\nclass Beside(Detokenizer): ...\n"
        (tmp_path / "beside_the_caller.py").write_text(module)
        for more in (
            ("scheduler", "--options", '{"policy": "shortest"}'),
            ("scheduler", "nowhere:Nobody"),
            ("detokenizer", "beside_the_caller:Beside"),
        ):
            process = await asyncio.create_subprocess_exec(
                *(*command, *more),
                cwd=tmp_path,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            found.append((await process.communicate(), process.returncode))
        assert found[0][1] == 0 and found[0][0][0] == b"scheduler#2 is up\n", found[0]
        assert found[1][1] == 1 and b"no module 'nowhere'" in found[1][0][1], found[1]
        assert found[2][1] == 0 and found[2][0][0] == b"detokenizer#2 is up\n", found[2]
        assert (await engine.complete(PROMPTS[0], PARAMS)).finished
