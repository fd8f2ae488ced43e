"""Machine code of torch's libraries, followed in fresh processes: launches of kernels, steps of a function, slices."""
