"""Energy: watts to states, sums of a rank, and the statistics that compare two variants."""
