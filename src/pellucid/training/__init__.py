"""Examples to better numbers: what is to be learned (objectives), and the one loop that learns it."""
