"""The answering of chats, whatever API they come by."""

from __future__ import annotations

from collections.abc import Sequence

from pageant.actors.http.answers import Answers
from pageant.actors.http.chat.request import Chat
from pageant.actors.http.naming import through, written_as
from pageant.actors.http.served import Served
from pageant.actors.http.service import Service


def begin(service: Service, chats: Sequence[Chat], served: Served, name: str) -> Answers:
    """Begin to answer chats that differ in nothing but their conversations.

    Raises:
        BadRequest: what is wrong with one of them, in the client's words.
        Overloaded: see `Service.begin`.
    """
    chat, formats = chats[0], served.formats
    with written_as(chat.names):
        constraint = chat.constraint(formats)
        return service.begin(
            served,
            [one.conversation for one in chats],
            chat.sampling_params(formats, constraint),
            name,
            chat.settings,
            chat.parser(formats, service.new_call_id),
            whole=not chat.stream,
            names=through({"structured_outputs": constraint.place}, chat.names),
        )
