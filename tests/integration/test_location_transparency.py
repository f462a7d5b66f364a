"""The same outputs wherever the actors live, and however their messages travel."""

import pytest

import pageant

PARAMS = [
    pageant.SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    pageant.SamplingParams(temperature=0.8, seed=11, max_tokens=20, top_k=20, ignore_eos=True),
    pageant.SamplingParams(temperature=1.2, seed=12, max_tokens=20, top_p=0.9, min_p=0.02),
    pageant.SamplingParams(temperature=1.0, seed=13, max_tokens=40, stop=["e", "th"]),
    pageant.SamplingParams(temperature=1.0, seed=14, max_tokens=20, min_tokens=10, skip_special_tokens=False),
    pageant.SamplingParams(
        temperature=1.0,
        seed=15,
        max_tokens=20,
        presence_penalty=0.5,
        frequency_penalty=-0.3,
        repetition_penalty=1.2,
        logit_bias={30: 2, 41: -4.5},
        allowed_token_ids=list(range(20, 90)),
    ),
]


def _outputs(checkpoint, prompts, **settings):
    with pageant.LLM(checkpoint.path, progress=False, threads=1, num_blocks=128, **settings) as llm:
        texts = llm.generate(["Hello", "Ünïcödé ☃ text", "def f():"], PARAMS[3])
        chat = llm.chat([{"role": "user", "content": "Hi"}], PARAMS[0])
        outputs = llm.generate(prompts, [PARAMS[i % len(PARAMS)] for i in range(len(prompts))])
        refused = sum(node.refused for node in llm.statistics())
        nodes = len(llm.statistics())
    assert refused == 0, "no message was refused"
    return nodes, [
        (
            o.prompt,
            o.outputs[0].text,
            o.outputs[0].token_ids,
            o.outputs[0].finish_reason,
            o.outputs[0].stop_reason,
        )
        for o in [*texts, *chat, *outputs]
    ]


@pytest.fixture(scope="module")
def in_one_process(checkpoint, mixed_prompts):
    nodes, outputs = _outputs(checkpoint, mixed_prompts, placement="one")
    assert nodes == 1
    return outputs


def test_every_message_through_the_codec_changes_nothing(checkpoint, mixed_prompts, in_one_process):
    nodes, outputs = _outputs(checkpoint, mixed_prompts, placement="one", wire="always")
    assert nodes == 1
    assert outputs == in_one_process


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_each_actor_in_its_own_process_changes_nothing(checkpoint, mixed_prompts, in_one_process, transport):
    nodes, outputs = _outputs(checkpoint, mixed_prompts, placement="each", transport=transport)
    assert nodes == 7
    assert outputs == in_one_process


def test_a_group_of_tokenizers_changes_nothing(checkpoint, mixed_prompts, in_one_process):
    _, outputs = _outputs(checkpoint, mixed_prompts, placement="one", actors={"tokenizer": {"count": 3}})
    assert outputs == in_one_process
