"""Samples that benchmarks and tests both compute with: random adapters, blocks and steps, and questions."""
