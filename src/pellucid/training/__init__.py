"""From examples to trained weights: the objectives, and the one loop that trains them."""
