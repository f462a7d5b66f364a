"""The encoder: images to the embeddings that stand for them in prompts, with a cache by content."""

from pageant.actors.encoder.actor import Encoder

__all__ = ["Encoder"]
