"""A whole topology in one thread and in simulated time, over a network that fails as a seed says. See
`Simulation`.
"""

from pageant.actors.runtime.simulation.faults import Fault, draw_faults
from pageant.actors.runtime.simulation.simulation import Outcome, Simulation, Violation

__all__ = ["Fault", "Outcome", "Simulation", "Violation", "draw_faults"]
