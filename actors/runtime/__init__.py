"""The microkernel: hosts actors and carries their messages. Knows no torch, no model, no scheduling.

Start reading at `actor` (what one writes), `cell` (how it is run), `node` (how messages find it), then
`remote` and `transport` (how they cross processes), `restarts` and `supervisor` (who lives).
"""

from pageant.actors.runtime.actor import Actor, ActorOptions, receives

__all__ = ["Actor", "ActorOptions", "receives"]
