"""`pageant chaos`: kills the processes of a topology while requests stream, and holds it to what it promises.

- `load` has requests with parameters of every kind, side by side, each held against what it is undisturbed.
- `killing` decides whom to kill or to stop next, and measures how long everybody then waited.
- `run` is the command.
- `replicas` is the command where whole replicas die, or come and go.
- `groups` is the command where executors of a group fail, each in each way; `failing` are such executors.
- `leftovers` are what a topology that has ended must not leave.
- `hosts` are hosts on a switch, as network namespaces.
- `cutting` is the command where cables are pulled instead.
"""
