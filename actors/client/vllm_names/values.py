"""Values as vLLM's users write them, read into ours. Each raises ValueError with what was found and expected."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pageant.protocol.checks import expected

DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
DTYPES = {"half": "float16", "float": "float32"}
KV_CACHE_DTYPES = {
    **{name: name for name in ("auto", "int8", "fp8")},
    **{"fp8_e4m3": "fp8", "int8_per_token_head": "int8", "fp8_per_token_head": "fp8"},
}
OTHER_KV_CACHES = "other KV caches have the model's data type"


def quantity(value: Any) -> Any:
    """Return a whole number that is written as `4k` (4000), `4K` (4096), `25.6k` or `1e9`; others as they are."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        return value
    text = value.strip().replace("_", "")
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text):
        number, unit = match.groups()
        if unit in DECIMAL:
            return int(float(number) * DECIMAL[unit])
        if "." in number:
            raise ValueError(f"found {value!r}; expected a whole number before {unit}, or {unit.lower()}")
        return int(number) * BINARY[unit]
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"\d+(?:\.\d+)?[eE]\+?\d+", text) and (number_ := float(text)).is_integer():
        return int(number_)
    raise ValueError(f"found {value!r}; expected a whole number, such as 4096, 4k (4000) or 4K (4096)")


def length(value: Any) -> Any:
    """Return the same of a length, of which `auto` and -1 are as much as fits (None)."""
    if isinstance(value, str) and value.strip().lower() == "auto":
        return None
    number = quantity(value)
    return None if number == -1 and not isinstance(number, bool) else number


def size(value: Any) -> Any:
    """Return a size of memory: a number of bytes, `4GiB`, or as `quantity` reads it."""
    if isinstance(value, str) and re.fullmatch(r"\s*\d+(?:\.\d+)?\s*([KMG]i?B)\s*", value):
        return value
    return quantity(value)


def gibibytes(value: Any) -> Any:
    """Return a number of GiB as bytes."""
    return int(float(value) * 2**30)


def dtype(value: Any) -> Any:
    """Return a data type by our name: `half` is float16, `float` is float32; `torch.float16` is taken, too."""
    text = str(value).removeprefix("torch.") if not isinstance(value, str) else value
    return DTYPES.get(text, text)


def kv_cache_dtype(value: Any) -> Any:
    """Return the format of a KV cache by our name."""
    if value not in KV_CACHE_DTYPES:
        known = " or ".join(map(repr, KV_CACHE_DTYPES))
        raise ValueError(f"found {value!r:.200}; expected {known}: {OTHER_KV_CACHES}")
    return KV_CACHE_DTYPES[value]


def generation_config(value: Any) -> Any:
    """Return where default parameters come from: `vllm` is our `none`."""
    return "none" if value == "vllm" else value


_METHODS = {
    "ngram": "ngram",
    "draft_model": "draft",
    "eagle": "eagle",
    "eagle3": "eagle",
    "medusa": "medusa",
    "mtp": "mtp",
}
_PASSED_OVER = {
    "prompt_lookup_max": "how long n-grams are is found as it goes",
    "prompt_lookup_min": "likewise",
    "max_model_len": "a draft model sees as much as its target",
    "enforce_eager": "nothing is compiled for it",
    "disable_padded_drafter_batch": "batches are never padded",
    "disable_logprobs": "log-probabilities are always those of the target",
    "draft_tensor_parallel_size": "a draft model runs where its target does",
    "parallel_drafting": "heads that draft in parallel do",
    "use_heterogeneous_vocab": "a draft model has its target's vocabulary",
    "revision": "",
    "quantization": "",
}
"""Keys of vLLM's speculative_config that choose how it drafts, not what comes out."""


def speculation(value: Any) -> Any:
    """Return vLLM's `speculative_config` as our `speculation`. A mapping in our own words is returned as it is."""
    if not isinstance(value, Mapping):
        raise ValueError(f'found {value!r:.200}; expected a mapping such as {{"method": "ngram"}}')
    given = {key: one for key, one in value.items() if one is not None}
    method, tokens = given.pop("method", None), given.pop("num_speculative_tokens", None)
    ours = {key: given.pop(key) for key in ("tokens", "adaptive", "patience", "options") if key in given}
    model = given.pop("model", None)
    for key in given:
        if key not in _PASSED_OVER:
            known = ("method", "model", "num_speculative_tokens", *_PASSED_OVER)
            raise ValueError(f"found the key {key!r:.100}; {expected(key, known)}")
    if method is None:
        method = "auto" if model is not None else "ngram"
    if method in ("suffix", "mlp_speculator", "dflash", "ngram_gpu"):
        raise ValueError(
            f"found method {method!r}; expected {', '.join(_METHODS)}: there is no such drafter here"
        )
    if method.endswith("_mtp"):  # vLLM's older names say of which family
        method = "mtp"
    return {
        "method": _METHODS.get(method, method),
        **({"model": str(model)} if model is not None else {}),
        **({"tokens": tokens} if tokens is not None else {}),
        **ours,
    }


def names(value: Any) -> Any:
    """Return a name, or a list of names as a tuple."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value):
        return tuple(value) if len(value) > 1 else value[0]
    raise ValueError(f"found {value!r:.200}; expected a name, or a list of names")


def adapters(value: Any) -> dict[str, str]:
    """Return adapters by name: of `name=path`, of vLLM's JSON objects, or of a mapping."""
    found: dict[str, str] = {}
    for one in value if isinstance(value, list | tuple) else [value]:
        if isinstance(one, str) and "=" in one and not one.lstrip().startswith("{"):
            name, _, path = one.partition("=")
            entries: list[Mapping[str, Any]] = [{"name": name, "path": path}]
        else:
            entries = _objects(one)
        for entry in entries:
            unknown = set(entry) - {"name", "path", "base_model_name"}
            if unknown or not entry.get("name") or not entry.get("path"):
                raise ValueError(f'found {one!r:.200}; expected name=path or {{"name": ..., "path": ...}}')
            if entry["name"] in found:
                raise ValueError(f"found {entry['name']!r} twice")
            found[str(entry["name"])] = str(entry["path"])
    return found


def _objects(value: Any) -> list[Mapping[str, Any]]:
    import json

    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            raise ValueError(
                f'found {value!r:.200}; expected name=path or {{"name": ..., "path": ...}}'
            ) from None
    if isinstance(value, Mapping):
        return [value]
    if isinstance(value, list) and all(isinstance(one, Mapping) for one in value):
        return value
    raise ValueError(f"found {value!r:.200}; expected name=path, or objects of name and path")


def positive_or_none(value: Any) -> Any:
    """Return a whole number, of which 0 is none."""
    number = quantity(value)
    return None if number == 0 else number


def object_names(value: Any) -> Any:
    """Return classes as `module:Class`, the form in which an executor finds them; such names as they are."""
    listed = value if isinstance(value, list | tuple) else [value]
    return [_object_name(one) for one in listed]


def _object_name(one: Any) -> Any:
    if isinstance(one, str) and ":" not in one and "." in one:
        module, _, name = one.rpartition(".")
        return f"{module}:{name}"
    if not isinstance(one, type):
        return one
    if "<" in one.__qualname__:
        raise ValueError(f"found {one.__qualname__}, a class within a function; expected one of a module")
    if one.__module__ != "__main__":
        return f"{one.__module__}:{one.__qualname__}"
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        raise ValueError(
            f"found {one.__qualname__}, a class of an interactive session; expected one of a module"
        )
    return f"{Path(file).absolute()}:{one.__qualname__}"  # the executor may be another process
