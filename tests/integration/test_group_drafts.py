"""Drafts on the device of a group's leader: what the group says is what one executor says without them."""

from __future__ import annotations

import copy
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pageant import LLM, SamplingParams
from pageant.protocol.errors import PageantError
from tests.integration.test_groups import ALL_KINDS, DEMO, GREEDY, SHAPES, SMALL, assert_same, said
from tests.mtp_models import drafting_well

DRAFTS: dict[str, dict[str, Any]] = {
    "draft": {"method": "draft", "model": f"{DEMO}/draft"},
    "EAGLE-3": {"method": "eagle", "model": f"{DEMO}/eagle"},
    "medusa": {"method": "medusa", "model": f"{DEMO}/medusa", "tokens": 7},
}
"""Of the demo model: a smaller model, EAGLE-3, and Medusa, whose drafts make trees."""

KINDS = ("greedy", "sampled", "penalised", "several", "guided", "greedy")


@pytest.fixture(scope="module")
def alone() -> Iterator[dict[str, Any]]:
    with LLM(DEMO, placement="one", **SMALL) as llm:
        yield {name: said(llm, ALL_KINDS[name]) for name in KINDS}


def accepted_share(llm: LLM) -> float:
    """Return how many of the drafts were right."""
    counters = llm.scheduler_statistics().counters
    return counters["drafts_accepted"] / counters["drafts_proposed"]


@pytest.fixture(scope="module", params=DRAFTS)
def drafts(request: pytest.FixtureRequest) -> dict[str, Any]:
    return DRAFTS[request.param] | {"adaptive": False}


@pytest.fixture(scope="module")
def usual_share(drafts: dict[str, Any]) -> float:
    """The share of right drafts of one executor."""
    with LLM(DEMO, placement="one", speculation=drafts, **SMALL) as llm:
        for kind in KINDS:
            said(llm, ALL_KINDS[kind])
        return accepted_share(llm)


@pytest.mark.parametrize("shape", ["two ranks", "two ranks in each of two stages"])
def test_drafts_of_the_leader_change_no_token_and_are_as_good_as_those_of_one(
    shape: str, drafts: dict[str, Any], usual_share: float, alone: dict[str, Any]
) -> None:
    if drafts["method"] == "eagle" and "stages" in shape:
        pytest.skip("it reads layers of the first stage")
    with LLM(DEMO, placement="one", speculation=drafts, **SHAPES[shape], **SMALL) as llm:
        for kind in KINDS:
            assert_same(said(llm, ALL_KINDS[kind]), alone[kind])
        assert accepted_share(llm) == pytest.approx(usual_share, rel=0.1)


@pytest.mark.parametrize("shape", ["two ranks", "three stages"])
def test_accepted_branches_of_trees_lie_right_in_blocks_that_leave_and_come_back(
    shape: str, alone: dict[str, Any]
) -> None:
    """Each member moves the keys and values of accepted branches before it saves their blocks."""
    settings = SMALL | {"num_blocks": 16, "max_model_len": 128, "host_memory": "64MiB"}
    with LLM(DEMO, placement="one", speculation=DRAFTS["medusa"], **SHAPES[shape], **settings) as llm:
        assert_same(said(llm, GREEDY), alone["greedy"])
        # What was said is said again, as a prompt: its blocks come back from the host's memory.
        whole = [output.prompt_token_ids + output.outputs[0].token_ids for output in alone["greedy"]]
        for word in ("dog", "cat", "sun"):
            llm.generate([" ".join([word] * 60)], GREEDY, use_tqdm=False)
        further = [output.outputs[0].token_ids for output in llm.generate(whole, GREEDY, use_tqdm=False)]
        pool = llm.pool_statistics()
        assert sum(tier.blocks_saved for tier in pool.tiers) > 0
    with LLM(DEMO, placement="one", **SMALL) as llm:
        assert further == [
            output.outputs[0].token_ids for output in llm.generate(whole, GREEDY, use_tqdm=False)
        ]


def test_a_head_that_reads_layers_of_other_stages_is_refused() -> None:
    settings = {"speculation": DRAFTS["EAGLE-3"], "pipeline_parallel": 2}
    with pytest.raises(PageantError, match=r"EAGLE-3.*expected pipeline_parallel 1, or another method"):
        LLM(DEMO, placement="one", **settings, **SMALL)


@pytest.mark.parametrize("shape", [{"tensor_parallel": 2}, {"pipeline_parallel": 2}], ids=str)
def test_a_checkpoints_own_layer_drafts_for_a_group(
    shape: dict[str, int], make_checkpoint: Callable[[str], Any], tmp_path: Path
) -> None:
    checkpoint = make_checkpoint("glm4_moe")
    config = copy.deepcopy(checkpoint.model.config)
    config.intermediate_size, config.moe_intermediate_size = 128, 64  # so that two can share them out
    torch.manual_seed(3)
    mtp = drafting_well(type(checkpoint.model)(config))
    shutil.copytree(checkpoint.path, tmp_path / "drafting")
    mtp.model.save_pretrained(tmp_path / "drafting")
    mtp.save(tmp_path / "drafting")
    saved = dataclasses.replace(checkpoint, model=mtp.model)
    prompts = [[5, 80, 33], [7 + 3 * place % 200 for place in range(50)], [9, 10, 11] * 6]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    settings = {"threads": 1, "num_blocks": 300, "speculation": {"method": "mtp", "tokens": 3}}
    with LLM(tmp_path / "drafting", placement="one", **shape, **settings) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert accepted_share(llm) > 0.05
    assert [one.outputs[0].token_ids for one in outputs] == [saved.greedy(prompt, 24) for prompt in prompts]
