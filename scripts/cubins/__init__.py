"""Machine code of the Triton kernels, compiled for GPUs that are not here."""
