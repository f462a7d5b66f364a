"""Quantised checkpoints beside other makers and readers.

- `elsewhere`: what `pageant quantize` writes, read by transformers and vLLM, and the logits that they compute.
- `perplexity`: held-out text by our rounding and by gptqmodel's, and its files read by us and by itself.
- `speed`: decoding from such a file beside our own int4 and int8, and beside vLLM's CPU build.

The other libraries have environments of their own: `in_transformers`, `in_vllm` and `in_gptqmodel` run there, and
import nothing of Pageant.
"""
