"""Roles of actors: the messages that an actor of a role must handle, and the features that it may declare.

An actor class that takes a role without handling all of `receives` is refused when it is defined. A request
that needs a feature which an actor of the topology does not declare is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pageant.protocol.allocation import Assign, Assigned, GetPoolStatistics, PoolReady
from pageant.protocol.drafting import Propose
from pageant.protocol.encoding import EncodeImages
from pageant.protocol.guiding import CompileGrammar, GuidesLost, GuideStep, TokenMasks
from pageant.protocol.hearing import EncodeAudio, MeasureAudio
from pageant.protocol.lifecycle import (
    AddAdapter,
    GetModelState,
    LoadModel,
    PauseModel,
    RemoveAdapter,
    ResetModelCache,
    ResumeModel,
    SleepModel,
    UpdateWeights,
    WakeModel,
)
from pageant.protocol.message import Message
from pageant.protocol.outputs import Stopped, TokenBatch
from pageant.protocol.routing import Load, Route
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Abort, OutputBatch, Submit
from pageant.protocol.stepping import ExecutorReady, LateTokens, StepPlan, StepResult
from pageant.protocol.storing import FollowStore, Pin, ReadStored, Reserve, Settle
from pageant.protocol.streams import Acknowledge, Resume
from pageant.protocol.supervision import ActorDown, ActorUp
from pageant.protocol.tokenizing import Tokenize, TokenizeChat


class Feature(StrEnum):
    """A need of a request beyond plain greedy decoding, which an actor declares to honour."""

    CHAT = "chat"
    SAMPLING = "sampling"
    TOP_K = "top_k"
    TOP_P = "top_p"
    MIN_P = "min_p"
    PENALTIES = "penalties"
    LOGIT_BIAS = "logit_bias"
    ALLOWED_TOKENS = "allowed_tokens"
    MIN_TOKENS = "min_tokens"
    STOP_STRINGS = "stop_strings"
    STOP_TOKEN_IDS = "stop_token_ids"
    SPECIAL_TOKENS = "special_tokens"
    PARALLEL_SAMPLES = "parallel_samples"
    LOGPROBS = "logprobs"
    PROMPT_LOGPROBS = "prompt_logprobs"
    BAD_WORDS = "bad_words"
    NO_DETOKENIZE = "no_detokenize"
    EXTRA_ARGS = "extra_args"
    STRUCTURED_OUTPUTS = "structured_outputs"
    ADAPTERS = "adapters"
    THINKING_BUDGET = "thinking_budget"
    PROMPT_EMBEDS = "prompt_embeds"
    IMAGES = "images"
    POOLING = "pooling"
    AUDIO = "audio"


@dataclass(frozen=True)
class Role:
    """A role in a topology. Its actor must honour `features`, perhaps together with actors of other roles."""

    name: str
    receives: tuple[type[Message], ...]
    features: frozenset[Feature] = frozenset()


_SAMPLES_AND_LOGPROBS = (Feature.PARALLEL_SAMPLES, Feature.LOGPROBS, Feature.PROMPT_LOGPROBS)

TOKENIZER = Role("tokenizer", (Tokenize, TokenizeChat), frozenset({Feature.CHAT}))
SCHEDULER = Role(
    "scheduler",
    (
        *(Submit, Abort, Assigned, StepResult, LateTokens, Stopped, ExecutorReady, PoolReady),
        *(Acknowledge, Resume, ActorUp, ActorDown),
    ),
    frozenset(
        {
            *(Feature.STOP_TOKEN_IDS, Feature.BAD_WORDS, Feature.STRUCTURED_OUTPUTS, Feature.ADAPTERS),
            *(*_SAMPLES_AND_LOGPROBS, Feature.PROMPT_EMBEDS, Feature.IMAGES, Feature.POOLING),
            Feature.AUDIO,
        }
    ),
)
BLOCKS = Role(
    "blocks",
    (Assign, ExecutorReady, GetPoolStatistics, ActorUp, ActorDown),
    frozenset(
        {
            *(Feature.PROMPT_LOGPROBS, Feature.ADAPTERS, Feature.PROMPT_EMBEDS, Feature.IMAGES),
            Feature.AUDIO,
        }
    ),
)
EXECUTOR = Role(
    "executor",
    (StepPlan, TokenMasks, GuidesLost, ActorUp, ActorDown),
    frozenset(
        {
            *(Feature.SAMPLING, Feature.TOP_K, Feature.TOP_P, Feature.MIN_P, Feature.MIN_TOKENS),
            *(Feature.PENALTIES, Feature.LOGIT_BIAS, Feature.ALLOWED_TOKENS, Feature.BAD_WORDS),
            *(Feature.EXTRA_ARGS, Feature.STRUCTURED_OUTPUTS, Feature.ADAPTERS, Feature.THINKING_BUDGET),
            *(*_SAMPLES_AND_LOGPROBS, Feature.PROMPT_EMBEDS, Feature.IMAGES, Feature.POOLING),
            Feature.AUDIO,
        }
    ),
)
DETOKENIZER = Role(
    "detokenizer",
    (TokenBatch, Acknowledge, Resume, ActorUp, ActorDown),
    frozenset(
        {
            *(Feature.STOP_STRINGS, Feature.SPECIAL_TOKENS, Feature.NO_DETOKENIZE),
            *(Feature.LOGPROBS, Feature.PROMPT_LOGPROBS, Feature.THINKING_BUDGET),
        }
    ),
)
DRAFTER = Role("drafter", (Propose,))
ENCODER = Role(
    "encoder", (EncodeImages, EncodeAudio, MeasureAudio), frozenset({Feature.IMAGES, Feature.AUDIO})
)
GRAMMAR = Role("grammar", (CompileGrammar, GuideStep, ActorUp, ActorDown))
FRONTEND = Role("frontend", (OutputBatch, ActorUp, ActorDown))

LIFECYCLE = Role(
    "lifecycle",
    (
        *(GetModelState, PauseModel, ResumeModel, ResetModelCache, AddAdapter, RemoveAdapter),
        *(SleepModel, WakeModel, UpdateWeights, LoadModel),
    ),
)

ROUTER = Role("router", (Route, Load, ActorUp, ActorDown))

STORE = Role("store", (FollowStore, Reserve, Pin, Settle, ReadStored, ActorUp, ActorDown))

_ALL = (
    TOKENIZER,
    ENCODER,
    SCHEDULER,
    BLOCKS,
    EXECUTOR,
    DETOKENIZER,
    DRAFTER,
    GRAMMAR,
    FRONTEND,
    LIFECYCLE,
    ROUTER,
    STORE,
)
ROLES = {role.name: role for role in _ALL}
OWNED_ROLES = frozenset(role.name for role in (SCHEDULER, BLOCKS, EXECUTOR, DETOKENIZER, DRAFTER, GRAMMAR))
"""Roles that each replica of a model has an actor of, which serves no other replica."""


def features_needed(params: SamplingParams, adapter: str | None = None) -> frozenset[Feature]:
    """Return the features that actors must honour to serve a request with these parameters and this adapter."""
    random = params.temperature > 0
    needs = {
        Feature.SAMPLING: random,
        Feature.TOP_K: random and params.top_k > 0,
        Feature.TOP_P: random and params.top_p < 1,
        Feature.MIN_P: random and params.min_p > 0,
        Feature.PENALTIES: params.has_penalties,
        Feature.LOGIT_BIAS: bool(params.logit_bias),
        Feature.ALLOWED_TOKENS: params.allowed_token_ids is not None,
        Feature.MIN_TOKENS: params.min_tokens > 0,
        Feature.STOP_STRINGS: bool(params.stop),
        Feature.STOP_TOKEN_IDS: bool(params.stop_token_ids),
        Feature.SPECIAL_TOKENS: not (params.skip_special_tokens and params.spaces_between_special_tokens),
        Feature.PARALLEL_SAMPLES: params.num_sequences > 1,
        Feature.LOGPROBS: params.logprobs is not None or params.num_sequences > params.n,
        Feature.PROMPT_LOGPROBS: params.prompt_logprobs is not None,
        Feature.BAD_WORDS: bool(params.bad_words),
        Feature.NO_DETOKENIZE: not params.detokenize,
        Feature.EXTRA_ARGS: bool(params.extra_args),
        Feature.STRUCTURED_OUTPUTS: params.structured_outputs is not None,
        Feature.ADAPTERS: adapter is not None,
        Feature.THINKING_BUDGET: params.thinking_token_budget is not None,
    }
    return frozenset(feature for feature, needed in needs.items() if needed)
