"""`pageant chaos`: kills the processes of a topology while requests stream, and holds it to what it promises.

- `load` has requests with parameters of every kind, side by side, each held against what it is undisturbed.
- `killing` decides whom to kill or to stop next, and measures how long everybody then waited.
- `run` is the command.
- `hosts` are hosts on a switch, as network namespaces.
- `cutting` is the command where cables are pulled instead.
"""
