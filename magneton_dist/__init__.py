"""magneton-dist: where the joules of a distributed training job went, why, and what to change."""
