"""Actor classes: what is refused when one is defined, and what its table holds."""

from __future__ import annotations

import pytest
from runtime_players import Note, Ping, Pong

from pageant.actors.runtime import Actor, receives
from pageant.actors.runtime.handlers import Style
from pageant.protocol.roles import ROLES, TOKENIZER, Feature
from pageant.protocol.tokenizing import Tokenize, TokenizeChat


def test_the_style_follows_from_how_a_handler_is_written():
    class Styles(Actor):
        @receives
        def call(self, message: Note) -> None: ...

        @receives(concurrent=True)
        async def stream(self, message: Ping):
            yield Pong()

        @receives
        async def either(self, message: Tokenize | TokenizeChat) -> None: ...

    table = Styles.handlers
    assert (table[Note].style, table[Note].concurrent) == (Style.CALL, False)
    assert (table[Ping].style, table[Ping].concurrent) == (Style.STREAM, True)
    assert table[Tokenize] is table[TokenizeChat] and table[Tokenize].style is Style.AWAIT


def test_a_role_asks_for_a_handler_of_each_of_its_messages():
    with pytest.raises(
        TypeError, match=r"Half takes the role of tokenizer but has no handler for TokenizeChat"
    ):

        class Half(Actor):
            role = TOKENIZER

            @receives
            def tokenize(self, request: Tokenize) -> None: ...


def test_a_feature_that_is_not_for_the_role_is_refused():
    with pytest.raises(
        TypeError, match=r"declares top_k, which is not for a tokenizer.*its features are chat"
    ):

        class Boaster(Actor):
            role = TOKENIZER
            features = frozenset({Feature.CHAT, Feature.TOP_K})

            @receives
            def tokenize(self, request: Tokenize | TokenizeChat) -> None: ...


def test_every_feature_belongs_to_a_role():
    assert {feature for role in ROLES.values() for feature in role.features} == set(Feature)


def define_with(annotation):
    def handle(self, message): ...

    if annotation is not None:
        handle.__annotations__["message"] = annotation
    return type("Bad", (Actor,), {"handle": receives(handle)})


@pytest.mark.parametrize("annotation", [None, int, "Ping | int", list[Ping], "NoSuchName", "Actor"])
def test_an_annotation_that_is_no_message_is_refused_with_its_place(annotation):
    with pytest.raises(
        TypeError, match=r"handle: (message must be annotated|its annotations cannot be read)"
    ):
        define_with(annotation)


def test_a_handler_takes_one_message():
    with pytest.raises(TypeError, match=r"takes self and one message, not \(self, a, b\)"):

        class Two(Actor):
            @receives
            def handle(self, a: Ping, b: Note) -> None: ...


def test_two_handlers_of_a_class_for_one_message_are_refused():
    with pytest.raises(TypeError, match="both first and second take Note"):

        class Torn(Actor):
            @receives
            def first(self, message: Note) -> None: ...

            @receives
            def second(self, message: Note) -> None: ...


def test_overrides_keep_their_messages_and_bring_their_own_style():
    class Base(Actor):
        @receives
        def note(self, message: Note) -> None: ...

        @receives
        def ping(self, message: Ping) -> Pong:
            return Pong()

    class Override(Base):
        async def note(self, message: Note) -> None: ...

        @receives
        def other(self, message: Ping) -> Pong:
            return Pong(value=1)

    assert Override.handlers[Note].style is Style.AWAIT
    assert Override.handlers[Ping].name == "other"
    assert Base.handlers[Note].style is Style.CALL


def test_a_name_that_is_given_to_another_message_loses_the_former():
    class Base(Actor):
        @receives
        def handle(self, message: Note) -> None: ...

    class Other(Base):
        @receives
        def handle(self, message: Ping) -> None: ...

    assert set(Other.handlers) == {Ping}
