"""Reports: one audit as terminal text, JSON, one HTML page, and one run as a Perfetto trace."""
