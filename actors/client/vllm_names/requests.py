"""Parameters of requests: of `SamplingParams`, `BeamSearchParams` and `StructuredOutputsParams`."""

from __future__ import annotations

from pageant.actors.client.vllm_names.rows import (
    Row,
    flag,
    no_effect,
    not_yet,
    same,
    table,
)

SAMPLING: dict[str, Row] = table(
    same("n", "how many samples"),
    same("presence_penalty", "from -2 to 2"),
    same("frequency_penalty", "from -2 to 2"),
    same("repetition_penalty", "1 is off"),
    same("temperature", "0 is greedy"),
    not_yet("watermarking", False, "texts bear no watermark"),
    same("top_p", "1 keeps all"),
    same("top_k", "0 and -1 keep all"),
    same("min_p", "0 keeps all"),
    same("seed", "the same seed gives the same tokens, whatever else runs"),
    same("stop", "a text or a list of texts"),
    same("stop_token_ids", "token ids that end a sample"),
    flag(same("ignore_eos", "go on after the model's end tokens")),
    same("max_tokens", "None is as many as fit"),
    same("min_tokens", "before so many, nothing ends a sample"),
    same("logprobs", "-1 is the whole vocabulary"),
    same("prompt_logprobs", "-1 is the whole vocabulary"),
    not_yet(
        "prompt_logprob_token_ids",
        None,
        "prompts are scored for their likeliest tokens",
        "use prompt_logprobs",
    ),
    not_yet("prompt_logprob_start", None, "prompts are scored from their beginning", "use prompt_logprobs"),
    same("logprob_token_ids", "at each place score these tokens"),
    not_yet("flat_logprobs", False, "log-probabilities are lists of mappings"),
    flag(same("detokenize", "turn tokens into text")),
    flag(same("skip_special_tokens", "leave special tokens out of the text")),
    flag(same("spaces_between_special_tokens", "what a decoder puts between two of them")),
    flag(same("include_stop_str_in_output", "keep the stop string")),
    same("output_kind", "cumulative, delta or final only"),
    no_effect("stream_interval", "what a step brings is sent at once"),
    flag(no_effect("skip_clone", "parameters are copied when a request begins")),
    no_effect("output_text_buffer_length", "found from the stop strings"),
    same("structured_outputs", "what the output must look like"),
    same("logit_bias", "what is added to the logits of some tokens"),
    same("allowed_token_ids", "draw only these"),
    same("extra_args", "for logits processors of your own"),
    same("bad_words", "texts that are not completed"),
    flag(
        no_effect("skip_reading_prefix_cache", "prompts are computed anew where their scores are asked for")
    ),
    same("thinking_token_budget", "most tokens of thoughts; -1 sets no bound"),
    not_yet("repetition_detection", None, "repetitions do not end a sample", "use repetition_penalty"),
    not_yet("routed_experts_prompt_start", 0, "the experts of a token are not told"),
    same(
        "trace_decode_token_ids", "the output itself, to have it scored; also with drafts and prompt_logprobs"
    ),
)

BEAMS: dict[str, Row] = table(
    same("beam_width", "how many beams live, and are returned"),
    same("max_tokens", "most tokens of a beam"),
    flag(same("ignore_eos", "beams do not end at the model's end tokens")),
    not_yet("temperature", 0, "beams follow the model's own log-probabilities"),
    same("length_penalty", "a score is divided by the length to this power"),
    not_yet("include_stop_str_in_output", False, "beams end at end tokens alone"),
    not_yet("structured_outputs", None, "beams are free text", "use generate with structured_outputs"),
    not_yet("skip_special_tokens", True, "special tokens are left out of a beam's text"),
    not_yet("watermarking", False, "texts bear no watermark"),
)

STRUCTURED: dict[str, Row] = table(
    same("json", "a schema, as a text or a mapping"),
    same("regex", "a regular expression that the whole text matches"),
    same("choice", "one of these texts"),
    same("grammar", "in Lark's form or GBNF"),
    flag(same("json_object", "any JSON object")),
    flag(same("disable_any_whitespace", "no blanks between the parts of JSON")),
    flag(same("disable_additional_properties", "only the properties that the schema names")),
    same("whitespace_pattern", "a regular expression for what stands between the parts of JSON"),
    same("structural_tag", "a tree of formats, or any text with tags"),
)
