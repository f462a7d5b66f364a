"""Arguments of calls with several prompts, under our names or vLLM's, converted to one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pageant.actors.client.lora import LoRARequest, lora_requests, one_each
from pageant.actors.client.sampling_params import frozen
from pageant.actors.client.vllm_names.methods import PARAMETERS
from pageant.actors.client.vllm_names.rows import Kind
from pageant.actors.frontend.prompts import (
    Limits,
    RequestSettings,
    check_params,
    check_settings,
    salt_of,
)
from pageant.protocol.checks import to_builtin
from pageant.protocol.errors import BadRequest
from pageant.protocol.sampling import SamplingParams

NOT_TAKEN = {row.name: row for row in PARAMETERS.values() if row.kind is Kind.NOT_YET}
PASSED_OVER = frozenset(row.name for row in PARAMETERS.values() if row.kind is Kind.NO_EFFECT)
TRACEPARENT = "traceparent"


class CallSettings(RequestSettings, total=False):
    """Keyword arguments of a call, besides prompts and parameters.

    Attributes:
        progress: whether a bar is shown. vLLM's name is `use_tqdm`.
        sampling_params: vLLM's name of `params`.
        lora_request: vLLM's way to name an adapter; one for all prompts, or a list of one each.
    """

    progress: bool | None
    sampling_params: Any
    use_tqdm: Any
    lora_request: Any
    tokenization_kwargs: Mapping[str, Any] | None
    mm_processor_kwargs: Mapping[str, Any] | None


@dataclass(frozen=True)
class Asked:
    """Arguments of one call, with the same number of entries in each list.

    Attributes:
        progress: show a bar; None leaves it to the caller's default.
    """

    params: list[SamplingParams]
    settings: list[RequestSettings]
    lora_requests: list[LoRARequest | None]
    progress: bool | None = None


def asked(
    limits: Limits, prompts: Sequence[Any], params: Any, given: Mapping[str, Any], *, samples: bool = True
) -> Asked:
    """Return what comes with these prompts.

    Args:
        params: sampling parameters for all, or a list of one each.
        given: further keyword arguments.
        samples: whether tokens are sampled; else there are no parameters of that.

    Raises:
        BadRequest: names the argument.
    """
    given, count = dict(given), len(prompts)
    params = either(params, given.pop("sampling_params", None), "params", "sampling_params")
    progress = _progress(given)
    loras = lora_requests(given.pop("lora_request", None), count)
    if any(loras) and given.get("adapter") is not None:
        raise BadRequest("lora_request is given beside adapter; expected one of them", "lora_request")
    common = without_vllms(given)
    priorities = _priorities(common, count)
    settings = [
        check_settings(
            {**common, **_own(lora, priority, salt)},
            limits.adapters,
        )
        for lora, priority, salt in zip(loras, priorities, map(salt_of, prompts), strict=True)
    ]
    return Asked(_params(params, limits, count) if samples else [], settings, loras, progress)


def load_missing(given: Any, limits: Limits) -> list[LoRARequest]:
    """Return the adapters of `lora_request` that name a folder and are not loaded, each once."""
    each = given if isinstance(given, list | tuple) else [given]
    found = [one for one in each if isinstance(one, LoRARequest) and one.lora_path]
    return list(dict.fromkeys(one for one in found if one.lora_name not in limits.adapters))


def _own(lora: LoRARequest | None, priority: Any, salt: str | None) -> dict[str, Any]:
    found = {"adapter": None if lora is None else lora.lora_name, "priority": priority, "cache_salt": salt}
    return {name: value for name, value in found.items() if value is not None}


def either(ours: Any, theirs: Any, our_name: str, their_name: str) -> Any:
    """Return what is given under one of two names.

    Raises:
        BadRequest: both are.
    """
    if ours is not None and theirs is not None:
        raise BadRequest(f"{their_name} is given beside {our_name}; expected one of them", their_name)
    return theirs if ours is None else ours


def _progress(given: dict[str, Any]) -> bool | None:
    """Return whether to show a bar. vLLM's users may give a class of bars, which counts as one of ours."""
    shown = either(given.pop("progress", None), given.pop("use_tqdm", None), "progress", "use_tqdm")
    return None if shown is None else bool(shown)


def without_vllms(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments without those of vLLM's that ask for nothing.

    Raises:
        BadRequest: one that asks for what is not here.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in NOT_TAKEN:
            if not NOT_TAKEN[name].is_neutral(value):
                raise BadRequest(f"{name}: {NOT_TAKEN[name].refusal(value)}", name)
        elif name == "trace_headers":
            found |= {TRACEPARENT: value[TRACEPARENT]} if value and TRACEPARENT in value else {}
        elif name not in PASSED_OVER:
            found[name] = value
    return found


def _priorities(given: dict[str, Any], count: int) -> Sequence[Any]:
    priority = given.pop("priority", None)
    if isinstance(priority, Sequence) and not isinstance(priority, str | bytes):
        return one_each("priority", priority, count)
    return [to_builtin(priority)] * count


def _params(params: Any, limits: Limits, count: int) -> list[SamplingParams]:
    if isinstance(params, Sequence):
        each = one_each("params", params, count)
        return [check_params(frozen(one), limits, f"params[{i}]") for i, one in enumerate(each)]
    return [check_params(frozen(params), limits)] * count


def as_prompts(prompts: Any) -> list[Any]:
    """Return a list of prompts, a single one, text or ids, being a list of one.

    Raises:
        BadRequest: nothing of the kind.
    """
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise BadRequest(f"prompts is a {type(prompts).__name__}; expected a text, or a list", "prompts")
    if prompts and all(isinstance(token, int) for token in prompts):
        return [prompts]
    return list(prompts)
