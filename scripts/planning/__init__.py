"""Capacity planning: the cores of schedulers, block managers and the router in model time, without actors.

`requests` draws a load or takes it from a recording, `replica` and `cluster` serve it, `outcome` sums it up, and
`search` finds how many replicas a service level needs. `calibration` measures the times of steps on this machine.
"""
