"""Waste, one file per kind: `alone(runs)` looks at one variant, `pair` modules compare two."""
