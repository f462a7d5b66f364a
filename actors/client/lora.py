"""`LoRARequest`: which adapter computes a request, as vLLM's users name it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pageant.actors.client.vllm_names.methods import LORA_REQUEST
from pageant.protocol.errors import BadRequest
from pageant.protocol.parameters import MutableParameters


class LoRARequest(MutableParameters, eq=False):
    """An adapter: its name, a number above 0, and its folder.

    Two are equal that have one name.

    Raises:
        BadRequest: no name, or no such number.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.lora_name, str) or not self.lora_name:
            raise BadRequest(f"lora_name is {self.lora_name!r:.80}; expected a name", "lora_name")
        if (
            isinstance(self.lora_int_id, bool)
            or not isinstance(self.lora_int_id, int)
            or self.lora_int_id < 1
        ):
            raise BadRequest(
                f"lora_int_id is {self.lora_int_id!r:.80}; expected a whole number above 0", "lora_int_id"
            )
        row = LORA_REQUEST["is_3d_lora_weight"]
        if not row.is_neutral(self.is_3d_lora_weight):
            raise BadRequest(f"{row.name}: {row.refusal(self.is_3d_lora_weight)}", row.name)

    @property
    def adapter_id(self) -> int:
        """Return its number."""
        return self.lora_int_id

    @property
    def name(self) -> str:
        """Return its name."""
        return self.lora_name

    @property
    def path(self) -> str:
        """Return its folder."""
        return self.lora_path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoRARequest) and other.lora_name == self.lora_name

    def __hash__(self) -> int:
        return hash(self.lora_name)


def lora_requests(given: Any, count: int) -> list[LoRARequest | None]:
    """Return the adapter of each of several requests: one for all, or a list of one each.

    Raises:
        BadRequest: something else, or too few or many.
    """
    if given is None or isinstance(given, LoRARequest | str):
        each: Sequence[Any] = [given] * count
    else:
        each = one_each("lora_request", given, count)
    return [_request(one, index) for index, one in enumerate(each)]


def _request(given: Any, index: int) -> LoRARequest | None:
    if given is None or isinstance(given, LoRARequest):
        return given
    if isinstance(given, str):
        return LoRARequest(given, 1)
    raise BadRequest(
        f"lora_request[{index}] is a {type(given).__name__}; expected a LoRARequest, or an adapter's name",
        "lora_request",
    )


def one_each(name: str, given: Any, count: int) -> Sequence[Any]:
    """Return a list that has one entry for each request.

    Raises:
        BadRequest: no list, or of another length.
    """
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise BadRequest(f"{name} is a {type(given).__name__}; expected one for all, or a list", name)
    if len(given) != count:
        raise BadRequest(f"{name} has {len(given)} entries for {count} prompts; expected one each", name)
    return given
