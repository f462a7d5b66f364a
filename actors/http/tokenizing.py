"""Tokens of prompts and conversations, for clients that want to see or count them."""

from __future__ import annotations

import msgspec

from pageant.actors.http.chat.conversation import TEMPLATES
from pageant.actors.http.naming import renamed
from pageant.actors.http.served import Served
from pageant.actors.http.service import Service
from pageant.protocol.errors import BadRequest
from pageant.protocol.tokenizing import Tokenize, TokenizeChat, Tokenized

LENGTHS_MAX = 4
"""The longest prompt whose tokens are shown or counted, as a multiple of max_model_len."""


async def tokenized(service: Service, served: Served, question: Tokenize | TokenizeChat) -> Tokenized:
    """Return a prompt's tokens, also where there are too many for an answer: a client that counts wants to know.

    Raises:
        BadRequest: the prompt is at fault, or has more tokens than anybody could mean.
    """
    most, names = LENGTHS_MAX * served.limits.max_model_len, TEMPLATES
    if isinstance(question, TokenizeChat):
        names = {**TEMPLATES, "prompt": "messages"}
    answer = await service.ask(served, "tokenizer", msgspec.structs.replace(question, tokens_max=most))
    if not isinstance(answer, Tokenized):
        raise renamed(BadRequest(answer.reason, answer.parameter), names)
    if (count := len(answer.token_ids)) > most:
        reason = (
            f"the prompt has {count} tokens; at most {most} are told of, {LENGTHS_MAX} times max_model_len"
        )
        raise renamed(BadRequest(reason, "prompt"), names)
    return answer
