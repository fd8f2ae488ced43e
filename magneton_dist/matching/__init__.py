"""Equal work in two runs: which operators of two graphs compute the same values."""
