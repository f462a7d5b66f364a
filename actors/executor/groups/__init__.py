"""Groups of executors that compute one model together: a leader, and ranks that follow it."""
