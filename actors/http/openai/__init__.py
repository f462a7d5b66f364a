"""OpenAI's API, with the fields that vLLM's users add to it: one file for each family of routes."""
