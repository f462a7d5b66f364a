"""Other engines on the same workloads: a file each, which is read here for its recipe and runs there.

A peer's file says how its environment is made (`INSTALL`: arguments of pip, one call each; none is our own
environment), and which environment variables suit it (`variables`, optional). It says for which weights a checkpoint
must first become one that it reads (`CONVERTED`, `convert`), and how it loads and generates (`load`). `serving.py` runs
the last two inside the peer's environment, where nothing of Pageant can be imported; so these files import nothing
of Pageant, and their libraries only within functions.
"""
