"""Models that are served without a tokenizer, with another's, with another template, or by sentencepiece."""

import shutil

import pytest

import pageant

SETTINGS = {"placement": "one", "progress": False, "threads": 1, "num_blocks": 64, "dtype": "float32"}
GREEDY = pageant.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)


@pytest.fixture(scope="module")
def bare(checkpoint, tmp_path_factory):
    """The checkpoint that most tests serve, without its tokenizer."""
    path = tmp_path_factory.mktemp("bare") / "model"
    shutil.copytree(checkpoint.path, path, ignore=shutil.ignore_patterns("token*", "chat_template*"))
    return path


def test_a_model_without_a_tokenizer_serves_token_ids(checkpoint, bare):
    prompt = [5, 6, 7, 8]
    with pageant.LLM(bare, skip_tokenizer_init=True, **SETTINGS) as llm:
        (output,) = llm.generate([prompt], GREEDY)
        (sample,) = output.outputs
        assert sample.token_ids == checkpoint.greedy(prompt, 8)
        assert sample.text == "" and len(sample.logprobs) == 8
        with pytest.raises(pageant.BadRequest, match="served without a tokenizer"):
            llm.generate(["a text"])
        with pytest.raises(pageant.BadRequest, match="stop needs the texts of tokens"):
            llm.generate([prompt], pageant.SamplingParams(stop=("x",)))
        with pytest.raises(pageant.BadRequest, match="structured_outputs needs the texts of tokens"):
            choice = pageant.StructuredOutputsParams(choice=("a", "b"))
            llm.generate([prompt], pageant.SamplingParams(structured_outputs=choice))
        with pytest.raises(pageant.BadRequest, match="chat template"):
            llm.chat([{"role": "user", "content": "hello"}])


def test_a_missing_tokenizer_names_both_remedies(bare):
    with pytest.raises(pageant.StartupError, match="another folder's by `tokenizer`, or set `skip_tokenizer"):
        pageant.LLM(bare, **SETTINGS)


def test_another_folders_tokenizer_and_a_template_of_ones_own(checkpoint, bare):
    template = "{% for message in messages %}[{{ message.content }}]{% endfor %}"
    with pageant.LLM(bare, tokenizer=checkpoint.path, chat_template=template, **SETTINGS) as llm:
        output = llm.chat([{"role": "user", "content": "hello"}], GREEDY)
        (output,) = output if isinstance(output, list) else [output]
        assert output.prompt == "[hello]"
        assert output.outputs[0].text
