"""Traces that others recorded, read into the record's tables."""
