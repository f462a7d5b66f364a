"""Models that hear: how files become samples (`processing`), what is said to them (`families`), and towers."""
