"""Operations on a running model: the methods that `Engine` and `LLM` share.

Each is one message to the lifecycle actor. Its changes outlive the death of any actor or process but the
root's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, get_args

from pageant.actors.client.adapters import adapter_folder
from pageant.actors.client.cast import LIFECYCLE
from pageant.actors.client.replicas import AsyncReplicas, SyncReplicas
from pageant.actors.client.session import Session
from pageant.actors.frontend.prompts import check_name
from pageant.protocol.checks import expected
from pageant.protocol.errors import BadRequest
from pageant.protocol.lifecycle import (
    ANSWER_SECONDS,
    DRAIN_SECONDS,
    LOAD_SECONDS,
    WAKE_TAGS,
    AddAdapter,
    GetModelState,
    ModelState,
    PauseMode,
    PauseModel,
    PrefixCacheReset,
    RemoveAdapter,
    ResetModelCache,
    ResumeModel,
    SleepModel,
    UpdateWeights,
    WakeModel,
)
from pageant.protocol.message import Request

R = TypeVar("R")


class Operations:
    """Messages to the lifecycle actor about the model of one session. Each method returns the answer as a future."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def pause(self, mode: PauseMode, clear_cache: bool) -> Future[ModelState]:
        """See `AsyncOperations.pause`."""
        check_mode(mode)
        replica = self._session.replica
        return self._ask(PauseModel(replica=replica, mode=mode, clear_cache=clear_cache), DRAIN_SECONDS)

    def resume(self) -> Future[ModelState]:
        """See `AsyncOperations.resume`."""
        return self._ask(ResumeModel(replica=self._session.replica))

    def state(self) -> Future[ModelState]:
        """Ask for the state of the model."""
        return self._ask(GetModelState(replica=self._session.replica))

    def reset_prefix_cache(self, reset_running_requests: bool) -> Future[PrefixCacheReset]:
        """See `AsyncOperations.reset_prefix_cache`."""
        return self._ask(ResetModelCache(replica=self._session.replica, reset_running=reset_running_requests))

    def sleep(self, level: Any, mode: PauseMode) -> Future[ModelState]:
        """See `AsyncOperations.sleep`."""
        check_mode(mode)
        if isinstance(level, bool) or level not in (0, 1, 2):
            raise BadRequest(f"level is {level!r:.100}; expected 0, 1 or 2", "level")
        return self._ask(SleepModel(replica=self._session.replica, level=level, mode=mode), DRAIN_SECONDS)

    def wake_up(self, tags: Sequence[str] | None) -> Future[ModelState]:
        """See `AsyncOperations.wake_up`."""
        request = WakeModel(replica=self._session.replica, parts=check_tags(tags))
        return self._ask(request, DRAIN_SECONDS)

    def update_weights(
        self, path: str | Path, version: str | None, mode: PauseMode, beside: bool
    ) -> Future[ModelState]:
        """See `AsyncOperations.update_weights`."""
        check_mode(mode)
        if version is not None:
            check_name("version", version)
        request = UpdateWeights(
            replica=self._session.replica,
            folder=str(Path(path).absolute()),
            version=version,
            mode=mode,
            beside=beside,
        )
        return self._ask(request, DRAIN_SECONDS)

    def add_adapter(self, name: str, folder: str | Path, in_place: bool) -> Future[ModelState]:
        """See `AsyncOperations.add_adapter`."""
        check_name("name", name)
        found = str(Path(adapter_folder(str(folder))).absolute())
        request = AddAdapter(replica=self._session.replica, name=name, folder=found, in_place=in_place)
        return self._ask(request, LOAD_SECONDS)

    def remove_adapter(self, name: str) -> Future[ModelState]:
        """See `AsyncOperations.remove_adapter`."""
        check_name("name", name)
        return self._ask(RemoveAdapter(replica=self._session.replica, name=name))

    def _ask(self, request: Request[R], seconds: float = ANSWER_SECONDS) -> Future[R]:
        future: Future[Any] = self._session.asking(LIFECYCLE, request, seconds)
        return future


def check_mode(mode: Any) -> None:
    """Refuse what is no mode of a pause."""
    modes = get_args(PauseMode)
    if mode not in modes:
        raise BadRequest(f"mode is {mode!r:.100}; {expected(str(mode), modes)}", "mode")


def check_tags(tags: Any) -> tuple[Any, ...] | None:
    """Return the parts that are to be woken; None is all of them."""
    if tags is None:
        return None
    given = (tags,) if isinstance(tags, str) else tuple(tags)
    for tag in given:
        if tag not in WAKE_TAGS:
            raise BadRequest(f"tags has {tag!r:.100}; {expected(str(tag), WAKE_TAGS)}", "tags")
    return given


class AsyncOperations:
    """The methods of `Engine`."""

    _session: Session

    @property
    def replicas(self) -> AsyncReplicas:
        """Return the model's replicas, to add, drain and remove some."""
        return AsyncReplicas(self._session)

    @property
    def _operations(self) -> Operations:
        return Operations(self._session)

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        """Stop computing. Returns when no step is computed any more; requests that come later wait for `resume`.

        Args:
            mode: what becomes of the requests that are open. `abort` ends them with what they have, `wait` computes
                them to their ends first, `keep` lets them go on after `resume`, with the same tokens.
            clear_cache: forget all cached prefixes. Kept requests compute theirs again.
        """
        await asyncio.wrap_future(self._operations.pause(mode, clear_cache))

    async def resume(self) -> None:
        """Go on after `pause`. Does nothing where nobody paused."""
        await asyncio.wrap_future(self._operations.resume())

    async def is_paused(self) -> bool:
        """Tell whether the model is paused."""
        return (await asyncio.wrap_future(self._operations.state())).paused is not None

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes, in every tier of memory. Returns True.

        Args:
            reset_running_requests: those give up their memory first, and compute it again.
        """
        await asyncio.wrap_future(self._operations.reset_prefix_cache(reset_running_requests))
        return True

    async def sleep(self, level: int = 1, *, mode: PauseMode = "abort") -> None:
        """Give back the memory of the KV cache, and of the weights, until `wake_up`. Requests that come meanwhile wait.

        Args:
            level: 1 keeps the weights in the host's memory, 2 keeps nothing; 0 only pauses.
            mode: what becomes of the requests that are open; see `pause`.
        """
        await asyncio.wrap_future(self._operations.sleep(level, mode))

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Compute again after `sleep`. Does nothing where the model is awake.

        Args:
            tags: only so much of it: `weights`, `kv_cache`; `scheduling` ends a pause. It computes when it has both.

        Raises:
            RemoteError: it cannot be brought back; it sleeps on.
        """
        await asyncio.wrap_future(self._operations.wake_up(tags))

    async def is_sleeping(self) -> bool:
        """Tell whether the model sleeps."""
        return (await asyncio.wrap_future(self._operations.state())).sleep_level > 0

    async def update_weights(
        self,
        path: str | Path,
        *,
        version: str | None = None,
        mode: PauseMode = "keep",
        beside: bool = True,
    ) -> str:
        """Go on with the weights of another checkpoint of the same shape. Returns what they are called.

        Args:
            path: the checkpoint's folder.
            version: what its weights are to be called, in `RequestOutput.weight_versions`; None takes the folder's
                name.
            mode: what becomes of the requests that are open; see `pause`. Kept ones compute all their tokens again,
                and go on with the new weights.
            beside: load them beside the present ones first, if there is memory for both, so that the pause is short.

        Raises:
            BadRequest: the checkpoint has another shape or other tokens, or cannot be computed; nothing has changed.
        """
        future = self._operations.update_weights(path, version, mode, beside)
        return (await asyncio.wrap_future(future)).weight_version

    async def get_weight_version(self) -> str:
        """Return the version of the weights that requests are computed with."""
        return (await asyncio.wrap_future(self._operations.state())).weight_version

    async def add_adapter(self, name: str, folder: str | Path, *, in_place: bool = False) -> None:
        """Load an adapter, while requests are computed. Requests may have it as soon as this returns.

        Args:
            name: what it is to be called.
            folder: with adapter_config.json and adapter_model.safetensors, as PEFT saves them; or a hub id.
            in_place: it may take the name of another. Requests that have begun with that one end with it.

        Raises:
            BadRequest: the name is taken, or what is wrong with the adapter.
        """
        await asyncio.wrap_future(self._operations.add_adapter(name, folder, in_place))

    async def remove_adapter(self, name: str) -> None:
        """Unload an adapter. Its requests end with an error that names it.

        Raises:
            BadRequest: there is none of that name.
        """
        await asyncio.wrap_future(self._operations.remove_adapter(name))

    async def adapters(self) -> list[str]:
        """The names of the adapters that requests may have."""
        return list((await asyncio.wrap_future(self._operations.state())).adapters)


class SyncOperations:
    """The same methods of `LLM`."""

    _session: Session

    @property
    def replicas(self) -> SyncReplicas:
        """Return the model's replicas, to add, drain and remove some."""
        return SyncReplicas(self._session)

    @property
    def _operations(self) -> Operations:
        return Operations(self._session)

    def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        """See `Engine.pause`."""
        self._operations.pause(mode, clear_cache).result()

    def resume(self) -> None:
        """See `Engine.resume`."""
        self._operations.resume().result()

    def is_paused(self) -> bool:
        """Tell whether the model is paused."""
        return self._operations.state().result().paused is not None

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """See `Engine.reset_prefix_cache`."""
        self._operations.reset_prefix_cache(reset_running_requests).result()
        return True

    def sleep(self, level: int = 1, *, mode: PauseMode = "abort") -> None:
        """See `Engine.sleep`."""
        self._operations.sleep(level, mode).result()

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """See `Engine.wake_up`."""
        self._operations.wake_up(tags).result()

    def is_sleeping(self) -> bool:
        """Tell whether the model sleeps."""
        return self._operations.state().result().sleep_level > 0

    def update_weights(
        self,
        path: str | Path,
        *,
        version: str | None = None,
        mode: PauseMode = "keep",
        beside: bool = True,
    ) -> str:
        """See `Engine.update_weights`."""
        return self._operations.update_weights(path, version, mode, beside).result().weight_version

    def get_weight_version(self) -> str:
        """Return the version of the weights that requests are computed with."""
        return self._operations.state().result().weight_version

    def add_adapter(self, name: str, folder: str | Path, *, in_place: bool = False) -> None:
        """See `Engine.add_adapter`."""
        self._operations.add_adapter(name, folder, in_place).result()

    def remove_adapter(self, name: str) -> None:
        """See `Engine.remove_adapter`."""
        self._operations.remove_adapter(name).result()

    def adapters(self) -> list[str]:
        """The names of the adapters that requests may have."""
        return list(self._operations.state().result().adapters)
