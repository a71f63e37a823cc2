"""Level 2: model files and where they come from: read and written, found and fetched."""
