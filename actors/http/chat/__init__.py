"""Chats in no client's shape: what OpenAI's and Anthropic's requests both become.

`request` is the chat; `turns` its messages, `conversation` what the tokenizer takes of them, `tools` what may be
called, `structure` the constraint on the answer, and `parsing` reads the answer.
"""
