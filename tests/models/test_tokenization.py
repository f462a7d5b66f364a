"""Tokenization against transformers' AutoTokenizer, on tokenizers of the usual kinds made on the spot."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from pageant.models import tokenization
from pageant.models.tokenization import Tokenization
from pageant.models.tokenizer_files import TokenizerError

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind it at all.",
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n",
    "Ein schöner Tag. Über den Wolken muß die Freiheit wohl grenzenlos sein.",
    "数字と漢字。今日は良い天気です。 привет, мир",
] * 3
TEXTS = [
    "",
    " ",
    "hello world",
    "  leading and trailing  ",
    "the dog<|im_end|> and the <|eot|>fox",
    "tabs\tand\n\nnewlines 1234567890",
    "schöne 漢字 👩‍👩‍👧 ɐʇɐp \u0000",
    "<s>the dog</s> the fox",
]
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level() -> Tokenizer:
    """Return a tokenizer as in Llama 3 and Qwen, without a post-processor."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|begin|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_level_with_bos() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin|> $A", special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))]
            ),
        ]
    )
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Return a tokenizer as in Llama 2: sentencepiece's blanks, unknown characters as bytes, bos in front."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    learner.train_from_iterator(CORPUS[:3], trainers.BpeTrainer(vocab_size=300, show_progress=False))
    learned = json.loads(learner.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *learned["vocab"]]
    merges = [tuple(merge) for merge in learned["merges"]]
    vocab = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


KINDS: dict[str, tuple[Callable[[], Tokenizer], dict[str, Any]]] = {
    "byte level": (byte_level, {"eos_token": "<|im_end|>", "pad_token": "<|not in the vocabulary|>"}),
    "byte level with bos": (byte_level_with_bos, {"bos_token": "<|begin|>", "eos_token": "<|im_end|>"}),
    "byte fallback": (byte_fallback, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
}


def save(backend: Tokenizer, path: Path, **config: object) -> Any:
    """Write a checkpoint with transformers; the AutoTokenizer that reads it back."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **config)  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(path)
    return AutoTokenizer.from_pretrained(path)


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    build, config = KINDS[request.param]
    path = tmp_path_factory.mktemp("checkpoint")
    return path, save(build(), path, **config)


@pytest.fixture(scope="module")
def pair(checkpoint: tuple[Path, Any]) -> tuple[Tokenization, Any]:
    path, oracle = checkpoint
    return Tokenization.from_checkpoint(path), oracle


@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_token_ids_equal_those_of_transformers(
    pair: tuple[Tokenization, Any], add_special_tokens: bool
) -> None:
    ours, oracle = pair
    expected = [oracle.encode(text, add_special_tokens=add_special_tokens) for text in TEXTS]
    assert [ours.encode(text, add_special_tokens) for text in TEXTS] == expected
    assert ours.encode_batch(TEXTS, add_special_tokens) == expected


@settings(max_examples=150)
@given(st.text(max_size=40))
def test_any_text_is_encoded_and_decoded_as_transformers_does(
    pair: tuple[Tokenization, Any], text: str
) -> None:
    ours, oracle = pair
    ids = ours.encode(text)
    assert ids == oracle.encode(text)
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == oracle.decode(ids, skip_special_tokens=skip)


def test_the_vocabulary_and_its_special_tokens_are_those_of_transformers(
    pair: tuple[Tokenization, Any],
) -> None:
    ours, oracle = pair
    assert ours.vocab_size == len(oracle)
    assert ours.special_ids == set(oracle.convert_tokens_to_ids(oracle.all_special_tokens)) | {
        index for index, token in oracle.added_tokens_decoder.items() if token.special
    }
    assert (ours.bos_token, ours.eos_token) == (oracle.bos_token, oracle.eos_token)
    assert ours.eos_token_id == oracle.eos_token_id
    assert [ours.id_to_token(index) for index in range(len(oracle))] == oracle.convert_ids_to_tokens(
        range(len(oracle))
    )
    assert ours.id_to_token(len(oracle)) is None


def test_tokens_that_only_the_configuration_declares_are_added(tmp_path: Path) -> None:
    tokenizer = byte_level()
    save(tokenizer, tmp_path, eos_token="<|im_end|>")
    first = tokenizer.get_vocab_size()
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {
        str(first + 1): {"content": "<|plain|>", "special": False, "lstrip": True, "normalized": False},
        str(first): {"content": "<|eot|>", "special": True},
    }
    config["extra_special_tokens"] = ["<|tool|>"]
    config["image_token"] = "<|image|>"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    from transformers import AutoTokenizer

    ours, oracle = Tokenization.from_checkpoint(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    text = "a <|eot|> b <|plain|> c <|tool|><|image|>"
    assert ours.encode(text) == oracle.encode(text)
    assert ours.decode(ours.encode(text)) == oracle.decode(oracle.encode(text), skip_special_tokens=True)
    assert ours.vocab_size == len(oracle) == first + 4


def test_an_older_checkpoint_s_special_tokens_map_is_read(tmp_path: Path) -> None:
    byte_fallback().save(str(tmp_path / "tokenizer.json"))
    special = {"bos_token": {"content": "<s>", "lstrip": False, "normalized": False}, "eos_token": "</s>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    tokenization = Tokenization.from_checkpoint(tmp_path)
    assert (tokenization.bos_token, tokenization.eos_token_id) == ("<s>", 2)


def test_truncation_and_padding_of_the_file_are_off_as_in_transformers(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    oracle = save(tokenizer, tmp_path)
    text = "the quick brown fox jumps"
    assert Tokenization.from_checkpoint(tmp_path).encode(text) == oracle.encode(text)


def test_a_checkpoint_without_tokenizer_json_is_converted_by_transformers(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.model.save(str(tmp_path))
    config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    from transformers import AutoTokenizer

    ours, oracle = Tokenization.from_checkpoint(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert [ours.encode(text) for text in TEXTS] == [oracle.encode(text) for text in TEXTS]
    assert ours.eos_token_id == oracle.eos_token_id


def leaves_the_interpreter(call: Callable[[], object]) -> bool:
    """Tell whether this thread was seen to do something between the beginning and the end of another one's call."""
    done: list[None] = []
    thread = threading.Thread(target=lambda: (call(), done.append(None)))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e3)  # nobody gets the interpreter but who is left it
    try:
        thread.start()
        return not done
    finally:
        sys.setswitchinterval(interval)
        thread.join()


def test_a_long_text_is_counted_in_pieces_until_it_has_too_many_tokens(
    pair: tuple[Tokenization, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = pair
    monkeypatch.setattr(tokenization, "PIECE_CHARACTERS", 100)
    text = "".join(CORPUS * 3)
    count = len(ours.encode(text, add_special_tokens=False))
    assert not ours.exceeds(text, count), "though it has more where it is cut"
    assert ours.exceeds(text, 0) and ours.exceeds(text, count // 4)
    read = []
    encode = ours.encode
    monkeypatch.setattr(
        ours, "encode", lambda piece, **options: read.append(piece) or encode(piece, **options)
    )
    assert ours.exceeds("x1" * 10_000, 500) and "".join(read) == "x1" * (50 * len(read))
    assert len(read) < 20, "the rest is of no interest"


def test_encoding_in_a_thread_leaves_the_interpreter_to_others(pair: tuple[Tokenization, Any]) -> None:
    ours, _ = pair
    text = " ".join(CORPUS) * 300
    assert not any(leaves_the_interpreter(lambda: ours._backend.encode(text)) for _ in range(3))
    # This thread may be late for it: then the call has ended, though it did leave.
    assert any(leaves_the_interpreter(lambda: ours.encode(text)) for _ in range(100))


def test_neither_torch_nor_transformers_is_imported(checkpoint: tuple[Path, Any]) -> None:
    code = (
        "import sys, pathlib; from pageant.models.tokenization import Tokenization\n"
        f"Tokenization.from_checkpoint(pathlib.Path({str(checkpoint[0])!r})).encode('hello')\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    path = [entry for entry in sys.path if entry]
    subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{code}"], check=True)


def test_a_folder_without_tokenizer_files_is_refused_with_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(
        TokenizerError, match=r"no tokenizer \(but model\.safetensors\); expected a tok"
    ) as error:
        Tokenization.from_checkpoint(tmp_path)
    assert str(tmp_path) in str(error.value)
    with pytest.raises(TokenizerError, match="not a folder"):
        Tokenization.from_checkpoint(tmp_path / "absent")


def test_a_truncated_tokenizer_json_is_refused_with_its_size_and_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level().to_str()[:1000])
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: 1000 bytes .* Fetch the file again"):
        Tokenization.from_checkpoint(tmp_path)


def test_a_git_lfs_pointer_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(TokenizerError, match="git lfs pull"):
        Tokenization.from_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", r"tokenizer_config\.json: not valid JSON"),
        ("[]", r"tokenizer_config\.json: a JSON list; expected a JSON object"),
        ('{"added_tokens_decoder": {"x": 1}}', r"malformed added_tokens_decoder"),
        ('{"added_tokens_decoder": [1]}', r"malformed added_tokens_decoder"),
    ],
)
def test_a_broken_configuration_is_refused_by_name(tmp_path: Path, config: str, message: str) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(TokenizerError, match=message):
        Tokenization.from_checkpoint(tmp_path)


def test_files_that_transformers_cannot_convert_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"not a model")
    with pytest.raises(TokenizerError, match=r"but tokenizer\.model, which transformers could not convert"):
        Tokenization.from_checkpoint(tmp_path)


def test_a_chat_is_encoded_without_a_second_bos(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    oracle = save(byte_level_with_bos(), tmp_path, bos_token="<|begin|>", chat_template=template)
    messages = [{"role": "user", "content": "the dog"}]
    ours = Tokenization.from_checkpoint(tmp_path)
    ids = ours.encode_chat(messages)
    assert ids == oracle.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert ids.count(oracle.bos_token_id) == 1


@pytest.mark.parametrize("place", ["jinja", "config", "named", "folder", "processor"])
def test_templates_are_found_wherever_checkpoints_keep_them(tmp_path: Path, place: str) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    config: dict[str, Any] = {}
    if place == "jinja":
        (tmp_path / "chat_template.jinja").write_text("default")
        config["chat_template"] = "a file of its own comes first"
    elif place == "config":
        config["chat_template"] = "default"
    elif place == "named":
        names = {"default": "default", "tool_use": "tools"}
        config["chat_template"] = [{"name": n, "template": t} for n, t in names.items()]
    elif place == "folder":
        (tmp_path / "chat_template.jinja").write_text("default")
        (tmp_path / "chat_templates").mkdir()
        (tmp_path / "chat_templates" / "tool_use.jinja").write_text("tools")
    else:
        (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "default"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = Tokenization.from_checkpoint(tmp_path)
    messages = [{"role": "user", "content": "hello"}]
    assert ours.render_chat(messages) == "default"
    expected = "tools" if place in ("named", "folder") else "default"
    assert ours.render_chat(messages, tools=[{"type": "function"}]) == expected


def test_an_added_token_that_is_not_special_stays_in_the_text() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    ours = Tokenization(tokenizer)
    assert ours.decode(ours.encode("<think>the dog<|im_end|>")) == "<think>the dog"
