"""`pageant chaos`: kills the processes of a topology while requests stream, and holds it to what it promises.

load      requests with parameters of every kind, side by side, each held against what it is undisturbed
killing   whom to kill or to stop next, and how long everybody then waited
run       the command
hosts     hosts on a switch, as network namespaces
cutting   the command, where cables are pulled instead
"""
