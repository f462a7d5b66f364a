"""Tuning: the topology that holds a service level on this machine, found in model time and chosen from real runs.

`space` has the settings that are searched, `workloads` the requests, `measuring` the costs of steps on this machine.
`simulating` serves a candidate in model time and `study` searches with it; `serving` runs the best for real;
`binding` says what binds, and `writing` writes the topology.
"""
