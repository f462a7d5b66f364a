"""Members of vLLM's that `LLM`, `LLMEngine` and `AsyncLLM` share, and why others are not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from pageant.actors.client.asking import load_missing
from pageant.actors.client.metrics import Metric, read_page
from pageant.actors.client.operating import Operations
from pageant.actors.client.sampling_params import SamplingParams
from pageant.actors.client.session import Session
from pageant.actors.client.vllm_names.rows import Kind, Row
from pageant.protocol.errors import NoSuchActor, Unsupported
from pageant.protocol.statistics import GetMetricsPage

OBSERVER = "observer"


class NotHere(Unsupported, AttributeError):
    """A member that vLLM's class has and ours has not; the message says why."""


@dataclass(frozen=True)
class ModelConfig:
    """Facts about a model, under vLLM's names.

    Attributes:
        model: the model's folder.
        tokenizer: the tokenizer's folder; None where it has none.
        max_model_len: tokens of the longest request.
    """

    model: str
    tokenizer: str | None
    served_model_name: str
    max_model_len: int
    vocab_size: int
    runner_type: str = "generate"

    def get_vocab_size(self) -> int:
        """Tokens that the model knows."""
        return self.vocab_size

    @cached_property
    def hf_config(self) -> Any:
        """The configuration as transformers reads it."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self.model, local_files_only=True)


class Members:
    """Base of those classes. `_table` has the members of vLLM's class."""

    _session: Session
    _table: Mapping[str, Row] = {}

    def __getattr__(self, name: str) -> NoReturn:
        """Called for what is not there: says why, where vLLM has it."""
        row = type(self)._table.get(name)
        kind = type(self).__name__
        if row is None or row.kind is not Kind.NOT_YET:
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")
        advice = f"; {row.nearest}" if row.nearest else ""
        raise NotHere(f"{kind}.{name} is not there: {row.meaning}{advice}")

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer, as transformers has it."""
        return self.get_tokenizer()

    def get_tokenizer(self) -> Any:
        """Return the model's tokenizer, as transformers has it; loaded once.

        Raises:
            Unsupported: the model is served without one.
        """
        if "_tokenizer" not in self.__dict__:
            served = self._session.served
            if served.tokenizer is None:
                raise Unsupported("the model is served without a tokenizer (skip_tokenizer_init)")
            from pageant.models.tokenizer_files import load_with_transformers

            self.__dict__["_tokenizer"] = load_with_transformers(Path(served.tokenizer), served.chat_template)
        return self.__dict__["_tokenizer"]

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of requests that bring none; changing them changes nothing else."""
        return SamplingParams.of(self._session.limits.defaults)

    @property
    def model_config(self) -> ModelConfig:
        """Return facts about the model."""
        served, limits = self._session.served, self._session.limits
        return ModelConfig(
            model=served.folder,
            tokenizer=served.tokenizer,
            served_model_name=served.name,
            max_model_len=limits.max_model_len,
            vocab_size=limits.vocab_size,
        )

    def get_world_size(self, include_dp: bool = True) -> int:
        """Return how many devices compute a model: one."""
        return 1

    def _metrics(self) -> list[Metric]:
        try:
            return read_page(self._session.ask(OBSERVER, GetMetricsPage()).text)
        except NoSuchActor:
            raise Unsupported(
                "there is no observer, which reads counters; expected disable_log_stats=False"
            ) from None

    def _load_adapters(self, given: Any) -> None:
        """Loads the adapters that requests name with a folder, and that are not there yet."""
        for one in load_missing(given, self._session.limits):
            Operations(self._session).add_adapter(one.lora_name, one.lora_path, one.load_inplace).result()
