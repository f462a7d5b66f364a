"""Anthropic's API: the same chats in another shape."""
