"""What a run leaves: tables, manifest, audit result."""
