"""From a difference between two variants to its cause, proved by flipping it in fresh processes."""
