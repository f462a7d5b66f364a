"""Drafts that the executor makes itself, after it has drawn a step's tokens: by a smaller model, or by heads or a
layer on the target's hidden states."""
