"""Text to token ids and back, and chats to prompts, for one checkpoint.

The checkpoint's `tokenizer.json` is loaded straight into the `tokenizers` library, without transformers,
whose import alone takes seconds. What transformers does on top of that file is done here too: the tokens
that `tokenizer_config.json` declares are added, truncation and padding are off. A checkpoint without a
`tokenizer.json` goes through transformers, which converts what there is.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE

from pageant.models.chat_images import ContentKinds, find_kinds
from pageant.models.chat_template import ChatTemplates
from pageant.models.tokenizer_files import (
    TokenizerError,
    add_declared_tokens,
    convert_with_transformers,
    named_tokens,
    read_backend,
    read_chat_templates,
    read_config,
)

PIECE_CHARACTERS = 262_144  # of a text whose tokens are counted; 50 ms
CUT_TOKENS = 16  # so many more at most where it is cut


class Tokenization:
    """The tokenizer and chat templates of one checkpoint.

    Immutable once built and usable from several threads: encoding releases the GIL. `special_tokens` maps
    names (`bos_token`) to tokens, for chat templates. `now` is the clock of templates (`strftime_now`).
    """

    def __init__(
        self,
        backend: Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
        now: Callable[[], datetime] | None = None,
        origin: str = "this tokenizer",
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._special_tokens = dict(special_tokens or {})
        self._chat_templates = ChatTemplates(
            chat_templates or {}, special_tokens=self._special_tokens, origin=origin, now=now
        )
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        """Number of tokens, added ones included. A model's own vocabulary is often padded beyond it."""
        self.special_ids: frozenset[int] = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        """What `skip_special_tokens` leaves out of decoded text."""

    @classmethod
    def without_tokens(cls) -> "Tokenization":
        """Return the tokenization of a model that has no tokenizer: no text has tokens, no token has a text."""
        backend = Tokenizer(BPE())
        backend.decoder = ByteLevel()  # by which texts are put together token by token
        return cls(backend, origin="a model without a tokenizer")

    @classmethod
    def of_model(
        cls,
        model: str,
        tokenizer: str | None,
        *,
        skip: bool,
        now: Callable[[], datetime] | None = None,
        chat_template: str | None = None,
    ) -> "Tokenization":
        """Load the tokenizer that a model is served with.

        Args:
            model: the checkpoint's folder.
            tokenizer: the folder of the tokenizer; None is the checkpoint's.
            skip: the model is served without one.
            chat_template: see `from_checkpoint`.

        Raises:
            TokenizerError: see `from_checkpoint`.
        """
        if skip:
            return cls.without_tokens()
        return cls.from_checkpoint(Path(tokenizer or model), now=now, chat_template=chat_template)

    @classmethod
    def from_checkpoint(
        cls, path: Path, *, now: Callable[[], datetime] | None = None, chat_template: str | None = None
    ) -> "Tokenization":
        """Load the tokenizer in a folder.

        Args:
            chat_template: the Jinja template of conversations, instead of the folder's own.

        Raises:
            TokenizerError: the folder has no tokenizer that can be read.
        """
        if not path.is_dir():
            raise TokenizerError(
                path, "not a folder", "a checkpoint's folder, with a tokenizer.json", "Check the path."
            )
        config = read_config(path)
        if (path / "tokenizer.json").is_file():
            backend = read_backend(path / "tokenizer.json")
            special_tokens = named_tokens(config)
            add_declared_tokens(backend, config, special_tokens, path)
        else:
            backend, special_tokens = convert_with_transformers(path)
        return cls(
            backend,
            special_tokens=special_tokens,
            chat_templates=read_chat_templates(path) if chat_template is None else {"default": chat_template},
            now=now,
            origin=path.name,
        )

    @cached_property
    def token_length_max(self) -> int:
        """Characters of the longest token as the vocabulary spells it, which is no shorter than its text."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)))

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Tokens by their names (`bos_token`), for chat templates."""
        return self._special_tokens

    @property
    def bos_token(self) -> str | None:
        return self._special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self._special_tokens.get("eos_token")

    @property
    def eos_token_id(self) -> int | None:
        return None if self.eos_token is None else self._backend.token_to_id(self.eos_token)

    @property
    def decoder_spec(self) -> Mapping[str, Any] | None:
        """The decoder as tokenizer.json has it (`{"type": "ByteLevel", ...}`); None where there is none."""
        decoder = self._backend.decoder
        return None if decoder is None else json.loads(decoder.__getstate__())

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Tokens for whole texts, such as `<|im_end|>`, that stand beside the vocabulary that was learned."""
        return {token.content: number for number, token in self._backend.get_added_tokens_decoder().items()}

    def to_json(self) -> str:
        """Return what a `tokenizer.json` of it holds, with the tokens that were added to that."""
        text: str = self._backend.to_str()
        return text

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of `text`, with what the post-processor adds (often a bos) unless told otherwise."""
        # Not `encode`: it holds the GIL from end to end (160 ms for 400 kB); a batch of one releases it.
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """`encode` for each text. More than one text is spread over all cores that the process may use."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def encode_pair(
        self,
        text: str,
        pair: str | None,
        *,
        truncate_to: int | None = None,
        side: str = "right",
        pair_max: int | None = None,
    ) -> tuple[list[int], int | None]:
        """Return the token ids of one text or of two, with special tokens, and where the second segment begins.

        Args:
            truncate_to: the most tokens, special ones included: of two texts the longer one is cut first.
            side: the end that is cut off, right or left.
            pair_max: the most tokens of the second text.

        Returns:
            The ids, and the position of the first token of type 1; None where all types are 0.

        Raises:
            ValueError: `truncate_to` leaves no room for the special tokens.
        """
        texts = [text] if pair is None else [text, pair]
        parts = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        if pair_max is not None and pair is not None:
            parts[1].truncate(pair_max, direction=side)
        if truncate_to is not None:
            room = truncate_to - self._backend.num_special_tokens_to_add(pair is not None)
            if room < 1:
                raise ValueError(f"{truncate_to} tokens leave no room beside the special ones")
            for part, most in zip(parts, _shares([len(part) for part in parts], room), strict=True):
                part.truncate(most, direction=side)
        second = parts[1] if pair is not None else None
        whole = self._backend.post_process(parts[0], second, True)
        types = whole.type_ids
        return whole.ids, types.index(1) if pair is not None and 1 in types else None

    def exceeds(self, text: str, num_tokens: int) -> bool:
        """Tell whether a text has more than so many tokens for certain, whatever its length.

        Pieces of it are counted until they have more: all at once would take some 200 bytes for each token. Where it
        is cut it may have a few more, which do not count; so what does not exceed has few more than that at most.
        """
        counted = 0
        for start in range(0, len(text), PIECE_CHARACTERS):
            piece = text[start : start + PIECE_CHARACTERS]
            counted += len(self.encode(piece, add_special_tokens=False)) - CUT_TOKENS
            if counted > num_tokens:
                return True
        return False

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of all of `token_ids` at once. Ids that are not in the vocabulary have no text."""
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def id_to_token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it (`Ġhello`), not its text; None if there is no such id."""
        return self._backend.id_to_token(token_id)

    def fit_chat(
        self, messages: Sequence[Mapping[str, Any]], *, with_tools: bool = False
    ) -> list[Mapping[str, Any]]:
        """Return the messages in a form that the checkpoint's template takes; see `ChatTemplates.fit`."""
        return self._chat_templates.fit(messages, with_tools=with_tools)

    @cached_property
    def content_kinds(self) -> ContentKinds:
        """The kinds of contents that the checkpoint's template takes."""
        return find_kinds(self._chat_templates.render)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a chat, by the checkpoint's own template; see `ChatTemplates.render`."""
        return self._chat_templates.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            template_kwargs=template_kwargs,
        )

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of `render_chat`. The template writes bos itself, so none is added."""
        text = self.render_chat(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            template_kwargs=template_kwargs,
        )
        return self.encode(text, add_special_tokens=False)


def _shares(lengths: list[int], room: int) -> list[int]:
    """Return how many tokens of each text are kept, so that all fit: of two, the longer one is cut first."""
    if sum(lengths) <= room:
        return lengths
    if len(lengths) == 1:
        return [room]
    shorter = min(min(lengths), room // 2)
    first = shorter if lengths[0] <= lengths[1] else room - shorter
    return [first, room - first]
