"""Tasks: texts in, typed answers out. Batches by length, runs the model and interprets its output. Reads no files."""
