"""Benchmarks of embeddings, beside libraries that run in environments of their own."""
