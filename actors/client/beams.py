"""Parameters of beam searches, as users write them."""

from __future__ import annotations

from typing import Any, Literal

from pageant.actors.client.outputs import RequestOutput
from pageant.actors.client.vllm_names.requests import BEAMS
from pageant.actors.client.vllm_names.rows import Kind
from pageant.actors.frontend.beam_search import BeamSettings
from pageant.actors.frontend.outputs import TokenLogprobs
from pageant.protocol.errors import BadRequest
from pageant.protocol.parameters import Parameters

NOT_TAKEN = tuple(row for row in BEAMS.values() if row.kind is Kind.NOT_YET)


class BeamSearchParams(Parameters, frozen=True, kw_only=False, forbid_unknown_fields=True):
    """Parameters of a beam search.

    Attributes:
        beam_width: the number of beams that live at a time, and are returned.
        max_tokens: the most tokens of a beam.
        ignore_eos: beams do not end at the model's end tokens.
        length_penalty: a beam's score is its log-probability divided by its length to this power.
        temperature, include_stop_str_in_output, structured_outputs, skip_special_tokens, watermarking: vLLM's,
            accepted where they ask for nothing.
        early_stopping: see `BeamSettings`.

    Raises:
        BadRequest: a value is out of range.
    """

    beam_width: int
    max_tokens: int = 16
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    structured_outputs: Any = None
    skip_special_tokens: bool = True
    watermarking: bool | None = None
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        for row in NOT_TAKEN:
            if not row.is_neutral(getattr(self, row.name)):
                raise BadRequest(f"{row.name}: {row.refusal(getattr(self, row.name))}", row.name)
        self.settings()

    def settings(self) -> BeamSettings:
        """Return the parameters as a search takes them.

        Raises:
            BadRequest: a value is out of range.
        """
        return BeamSettings(
            beam_width=self.beam_width,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
        )


def next_place(output: RequestOutput) -> TokenLogprobs:
    """Return what a beam's request says of its next token."""
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None, "beams ask for log-probabilities"
    return logprobs[0]


def check_beam_params(params: Any) -> BeamSearchParams:
    """Refuses parameters of another kind."""
    if not isinstance(params, BeamSearchParams):
        raise BadRequest(f"params is a {type(params).__name__}; expected BeamSearchParams", "params")
    return params
