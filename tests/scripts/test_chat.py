"""The parts of `pageant chat` that need no model: words on a terminal, commands, and a context that is full."""

from __future__ import annotations

import asyncio
import io
import json

import pytest

from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams
from pageant.scripts.commands.chat import Session
from pageant.scripts.commands.chat_backends import ContextFull, ServerBackend, given_fields
from pageant.scripts.commands.chat_terminal import Words


class Echo:
    """Answers with the last message; takes so many messages at most, and keeps what it was asked."""

    name = "echo"

    def __init__(self, messages_max=100):
        self.asked, self._most = [], messages_max

    async def answer(self, messages, params):
        if len(messages) > self._most:
            raise ContextFull("the prompt has 9 tokens; max_model_len is 8")
        self.asked.append([dict(one) for one in messages])
        for number, word in enumerate(messages[-1]["content"].split(), 1):
            yield word + " ", number

    async def close(self): ...


def talk(monkeypatch, lines, backend, system=None):
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    with asyncio.Runner() as runner:
        session = Session(runner, backend, SamplingParams(), system)
        session.run()
    return session


def written(pieces, width):
    out = io.StringIO()
    words = Words(out, width)
    for piece in pieces:
        words.write(piece)
    words.end()
    return out.getvalue()


@pytest.mark.parametrize("size", [1, 3, 100])
def test_words_are_whole_at_the_terminals_edge(size):
    text = "a list is mutable\nand a tuple is not, incomprehensibilities"
    out = written([text[place : place + size] for place in range(0, len(text), size)], 10)
    assert out.split() == text.split()
    assert all(len(line) <= 10 or " " not in line.strip() for line in out.splitlines())
    assert "list is\nmutable\nand a" in out.replace(" \n", "\n")


def test_without_a_terminal_a_text_comes_as_it_is():
    assert written(["a  b", "\n\nc" * 50], None) == "a  b" + "\n\nc" * 50 + "\n"


def test_a_conversation_is_asked_whole_and_cleared_but_for_its_system_message(monkeypatch, capsys):
    backend = Echo()
    talk(monkeypatch, ["one two", "three", "/clear", "four", "/exit", "never"], backend, "be kind")
    system = {"role": "system", "content": "be kind"}
    assert [[one["content"] for one in asked] for asked in backend.asked] == [
        ["be kind", "one two"],
        ["be kind", "one two", "one two ", "three"],
        ["be kind", "four"],
    ]
    assert all(asked[0] == system for asked in backend.asked)
    assert capsys.readouterr().out.splitlines() == ["one two ", "three ", "four "]


def test_the_oldest_messages_give_way_when_the_context_is_full(monkeypatch, capsys):
    backend = Echo(messages_max=3)
    talk(monkeypatch, ["one", "two", "three"], backend)
    assert [one["content"] for one in backend.asked[-1]] == ["two", "two ", "three"]
    assert "the context is full: the oldest 2 messages are left out" in capsys.readouterr().err


def test_a_message_that_alone_does_not_fit_is_refused_and_the_session_goes_on(monkeypatch, capsys):
    backend = Echo(messages_max=0)
    session = talk(monkeypatch, ["one", "two"], backend)
    assert capsys.readouterr().err.count("max_model_len is 8") == 2 and session.messages == []


def test_commands_save_set_the_system_message_and_name_the_nearest(monkeypatch, tmp_path, capsys):
    path = tmp_path / "talk.json"
    talk(monkeypatch, ["/system be brief", "hello", f"/save {path}", "/sav", "/help"], Echo())
    assert [one["role"] for one in json.loads(path.read_text())] == ["system", "user", "assistant"]
    said = capsys.readouterr().err
    assert "system: be brief" in said and "did you mean /save?" in said and "/clear" in said


def test_only_what_was_given_is_sent_to_a_server():
    assert given_fields(SamplingParams(temperature=0.5, max_tokens=9, stop=("x",))) == {
        "temperature": 0.5,
        "max_tokens": 9,
        "stop": ("x",),
    }
    with pytest.raises(BadRequest, match="expected such as http"):
        ServerBackend("ftp://x", None, "m")
