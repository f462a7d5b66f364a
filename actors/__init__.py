"""The cast, and the runtime that hosts it. Actors know one another by name and message only."""
