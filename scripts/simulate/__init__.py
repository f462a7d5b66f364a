"""`pageant simulate`: the whole engine over a stand-in for the model, in simulated time, hit by what a seed says."""
