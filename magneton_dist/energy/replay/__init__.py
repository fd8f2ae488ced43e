"""Operator energy by replay: one operator over and over, long enough for a slow sensor to see it."""
