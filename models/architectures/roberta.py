"""RoBERTa and XLM-RoBERTa: a BERT whose first position comes after that of padding."""

from __future__ import annotations

from dataclasses import replace

from pageant.models.architectures.bert import bert_encoder, bert_names
from pageant.models.architectures.common import Architecture
from pageant.models.config import Config
from pageant.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "XLM_ROBERTA"]


def _spec(config: Config) -> DecoderSpec:
    offset = config.count("pad_token_id", 1, minimum=0) + 1
    spec = bert_encoder(config, position_offset=offset)
    if spec.max_model_len <= offset:
        raise config.wrong("max_position_embeddings", spec.max_model_len, f"more than {offset}")
    return replace(spec, max_model_len=spec.max_model_len - offset)


ARCHITECTURE = Architecture("RobertaModel", _spec, bert_names("roberta"))
XLM_ROBERTA = Architecture("XLMRobertaModel", _spec, bert_names("roberta"))
