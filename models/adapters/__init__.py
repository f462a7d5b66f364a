"""Low-rank adapters (LoRA) of a model: what a folder says of one (`checkpoint`), and what computes it (`loading`)."""
