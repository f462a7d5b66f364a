"""The microkernel: hosts actors and carries their messages. Knows no torch, no model, no scheduling.

Start reading at `actor` (what a user writes), `cell` (how an actor is run) and `node` (how messages find it).
Then read `remote` and `transport` (how messages cross processes), and `restarts` and `supervisor` (how actors
are restarted).
"""

from pageant.actors.runtime.actor import Actor, ActorOptions, receives

__all__ = ["Actor", "ActorOptions", "receives"]
