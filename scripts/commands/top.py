"""`pageant top`: looks at a server again and again, and shows what happened between the looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from pageant.protocol.errors import PageantError, PeerGone
from pageant.protocol.statistics import Observation
from pageant.scripts.http_client import Client, Failed
from pageant.scripts.top.figures import Figures, figures
from pageant.scripts.top.view import view

LOOK_SECONDS_MAX = 10.0


def top(url: str, api_key: str | None, seconds: float, *, once: bool, as_json: bool) -> None:
    """Shows a server until Ctrl-C, or once; as JSON, an object in each line.

    Raises:
        PeerGone: the server cannot be asked.
    """
    console = Console()
    if once or as_json:

        def show(found: Figures) -> None:
            if as_json:
                print(msgspec.json.encode(found).decode(), flush=True)
            else:
                console.print(view(found, console.height))

        asyncio.run(watch(url, api_key, seconds, show, once=once))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        draw = partial(live.update, refresh=True)
        asyncio.run(
            watch(
                *(url, api_key, seconds, lambda found: draw(view(found, console.height))),
                gone=lambda error: draw(Text(f"{error}; trying again", "red")),
            )
        )


async def watch(
    url: str,
    api_key: str | None,
    seconds: float,
    show: Callable[[Figures], None],
    *,
    gone: Callable[[PeerGone], None] | None = None,
    once: bool = False,
) -> None:
    """Shows the time between looks, each time.

    Args:
        gone: is told that a server that was there is not, and then it is looked for again.
    """
    client = Client(url, api_key)
    try:
        before = await look(client)
        while True:
            await asyncio.sleep(seconds)
            try:
                after = await look(client)
            except PeerGone as error:
                if gone is None:
                    raise
                gone(error)
                continue
            show(figures(before, after))
            before = after
            if once:
                return
    finally:
        client.close()
        await asyncio.sleep(0)  # connections close in the loop's next round


async def look(client: Client) -> Observation:
    """Read the figures as of now.

    Raises:
        PeerGone: the server does not answer, or refuses to.
    """
    try:
        async with asyncio.timeout(LOOK_SECONDS_MAX):
            return msgspec.json.decode(await client.get("/statistics"), type=Observation)
    except TimeoutError:
        raise PeerGone(f"the server did not tell what it does within {LOOK_SECONDS_MAX:g} s") from None
    except Failed as error:
        hint = "; give the server's key with --api-key or OPENAI_API_KEY" if "401" in str(error) else ""
        raise PeerGone(f"the server does not tell what it does: {error}{hint}") from None
    except msgspec.ValidationError as error:
        raise PageantError(f"the server is of another version: {error}") from None
    except msgspec.DecodeError:
        raise PageantError("the server is no Pageant: what it says at /statistics is no JSON") from None
