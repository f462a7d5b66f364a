"""Models that see: how images become pixels (`processing`), tokens (`families`) and embeddings (`towers`)."""
