"""A load on any server that speaks OpenAI's API: what is asked and when, a lean client, and what came of it."""
