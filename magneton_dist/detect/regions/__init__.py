"""Two variants' traced steps side by side: equal work that costs differently, and what only one of them runs."""
