"""The grammar actor: which tokens a request's structured output allows next. `compiling` makes grammars of what
requests ask for, `core` follows sequences along them, and `actor` is the shell.

llguidance does the parsing (its import, and the reading of the vocabulary, wait for the first request that needs
them). It computes a mask by walking the vocabulary's trie with an Earley parser over derivatives of regular
expressions, so nothing is precomputed by grammar state, and a grammar is ready in milliseconds.
"""
