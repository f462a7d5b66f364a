"""Models that come as one GGUF file, the format of llama.cpp: weights, configuration and tokenizer together.

- `container` reads a file's header: its metadata and where its tensors are. `types` knows the sizes of their blocks.
- `tensors` gives the tensors of a file, stacks of experts taken apart. `mapping` opens their bytes for the loader.
- `families` says which architecture here is meant by a name of llama.cpp's; `config` makes its config.json.
- `names` says which tensor of a file is which module here.
- `tokenizer` makes a tokenizer.json, and `vocabulary` reads what it is made of.
- `folder` puts all of it into a folder that is read as any other checkpoint.

Everything but `mapping` is free of torch. `docs/quantized-checkpoints.md` says what can be read.
"""
