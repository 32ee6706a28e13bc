"""A person's question to a typed answer: batch by length, run, read. Knows no file."""
