"""Heads that classify: a layer or two over one hidden state of a text, and what makes scores of their logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pageant.models.config import Config
from pageant.models.errors import CheckpointError
from pageant.models.pooling.spec import Activation, Affine, PoolKind, Scores, Standardise, Step
from pageant.models.tensor_files import TensorInfo

__all__ = ["Classifier", "read_classifier", "read_labels", "read_scores"]

_MISMATCH = "Check that config.json and the weights belong together."
_ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu", "relu": "relu", "silu": "silu", "tanh": "tanh"}
_SCORES: dict[str, Scores] = {"Identity": "identity", "Sigmoid": "sigmoid", "Softmax": "softmax"}
_BY_PROBLEM: dict[str, Scores] = {
    "regression": "identity",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}


@dataclass(frozen=True, slots=True)
class Classifier:
    """A head: the hidden states that it reads, and its layers."""

    pool: PoolKind
    steps: tuple[Step, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Weights:
    """The tensors of a checkpoint, by the names that they are saved by."""

    tensors: Mapping[str, TensorInfo]
    config: Config

    def affine(
        self, module: str, shape: tuple[int, int], activation: Activation = "identity", *, bias: bool = True
    ) -> Affine:
        weight = self.find(f"{module}.weight", shape)
        found = self.find(f"{module}.bias", shape[:1]) if bias else None
        return Affine(weight=weight, bias=found, activation=activation)

    def find(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError(
                self.config.path.parent, f"missing tensors: {name}", "the model's head", _MISMATCH
            )
        if info.shape != shape:
            raise CheckpointError(
                info.file, f"{name} has shape {list(info.shape)}", f"{list(shape)}, by config.json", _MISMATCH
            )
        return info


def read_classifier(
    config: Config, tensors: Mapping[str, TensorInfo], token_ids: Callable[[tuple[str, ...]], tuple[int, ...]]
) -> Classifier:
    """Return the head of a checkpoint that classifies.

    Args:
        tensors: by the names that they are saved by.
        token_ids: returns the ids of tokens of the vocabulary.

    Raises:
        CheckpointError: there is no such head, or its shapes disagree with the configuration's labels.
    """
    weights = _Weights(tensors, config)
    if "classifier_from_token" in config:
        return _from_tokens(config, weights, token_ids)
    labels, width = read_labels(config), config.count("hidden_size")
    count, name = len(labels), config.texts("architectures")[0]
    if name.endswith("ForTokenClassification"):
        return _of_tokens(config, weights, labels, width)
    if name == "BertForSequenceClassification":
        pooler = weights.affine("bert.pooler.dense", (width, width), "tanh")
        return Classifier("cls", (pooler, weights.affine("classifier", (count, width))), labels)
    if name in ("RobertaForSequenceClassification", "XLMRobertaForSequenceClassification"):
        dense = weights.affine("classifier.dense", (width, width), "tanh")
        return Classifier("cls", (dense, weights.affine("classifier.out_proj", (count, width))), labels)
    if name == "ModernBertForSequenceClassification":
        pool = config.text("classifier_pooling", "cls")
        if pool not in ("cls", "mean"):
            raise config.wrong("classifier_pooling", pool, "cls or mean")
        steps = (*_modernbert_head(config, weights, width), weights.affine("classifier", (count, width)))
        return Classifier("cls" if pool == "cls" else "mean", steps, labels)
    return Classifier("last", (weights.affine("score", (count, width), bias=False),), labels)


def _modernbert_head(config: Config, weights: _Weights, width: int) -> tuple[Step, ...]:
    name = config.text("classifier_activation", "gelu")
    if name not in _ACTIVATIONS:
        raise config.wrong("classifier_activation", name, f"one of {', '.join(_ACTIVATIONS)}")
    biased = config.flag("classifier_bias")
    dense = weights.affine("head.dense", (width, width), _ACTIVATIONS[name], bias=biased)
    bias = weights.find("head.norm.bias", (width,)) if config.flag("norm_bias") else None
    norm = weights.find("head.norm.weight", (width,))
    return dense, Standardise(weight=norm, bias=bias, eps=config.number("norm_eps", 1e-5))


def _of_tokens(config: Config, weights: _Weights, labels: tuple[str, ...], width: int) -> Classifier:
    steps: tuple[Step, ...] = ()
    if config.texts("architectures")[0].startswith("ModernBert"):
        steps = _modernbert_head(config, weights, width)
    module = "classifier" if "classifier.weight" in weights.tensors else "score"
    return Classifier("all", (*steps, weights.affine(module, (len(labels), width))), labels)


def _from_tokens(
    config: Config, weights: _Weights, token_ids: Callable[[tuple[str, ...]], tuple[int, ...]]
) -> Classifier:
    """Return a head whose logits are those of some tokens, or of the second of two less the first (Qwen3-Reranker)."""
    tokens = config.texts("classifier_from_token")
    two_way = config.flag("is_original_qwen3_reranker") or config.text("method", "") == "from_2_way_softmax"
    if not tokens or (two_way and len(tokens) != 2):
        raise config.wrong("classifier_from_token", list(tokens), "two tokens" if two_way else "some tokens")
    rows = token_ids(tokens)
    names = ("lm_head.weight", "model.embed_tokens.weight", "embed_tokens.weight")
    if config.flag("tie_word_embeddings"):
        names = (*names[1:], names[0])
    weight = next((found for name in names if (found := weights.tensors.get(name))), None)
    if weight is None:
        raise CheckpointError(
            config.path.parent, f"missing tensors: {names[0]}", "the model's head", _MISMATCH
        )
    if two_way:
        head = Affine(weight=weight, rows=(rows[1], rows[0]), first_less_second=True)
        return Classifier("last", (head,), (tokens[1],))
    return Classifier("last", (Affine(weight=weight, rows=rows),), tokens)


def read_labels(config: Config) -> tuple[str, ...]:
    """Return the names of a classifier's labels.

    Raises:
        CheckpointError: `num_labels` and `id2label` disagree.
    """
    named = config.section("id2label").values
    count = config.count("num_labels", len(named) or 2)
    if named and len(named) != count:
        raise config.wrong("num_labels", count, f"{len(named)}, as id2label has")
    labels = tuple(str(named.get(str(index), f"LABEL_{index}")) for index in range(count))
    if named and len(named) != sum(str(index) in named for index in range(count)):
        raise config.wrong("id2label", dict(named), f"names of 0 to {count - 1}")
    return labels


def read_scores(config: Config, num_labels: int) -> Scores:
    """Return what makes scores of logits: as sentence-transformers' configuration says, or the problem's type."""
    said = config.section("sentence_transformers").values.get("activation_fn")
    said = said or config.values.get("sbert_ce_default_activation_function")
    if said is not None:
        name = str(said).rpartition(".")[2]
        if name not in _SCORES:
            raise config.wrong("activation_fn", said, f"one of {', '.join(_SCORES)}")
        return _SCORES[name]
    problem = config.text("problem_type", "")
    if problem and problem not in _BY_PROBLEM:
        raise config.wrong("problem_type", problem, f"one of {', '.join(_BY_PROBLEM)}")
    return _BY_PROBLEM.get(problem, "sigmoid" if num_labels == 1 else "softmax")
