"""The text of a compiled module, read into computations, instructions, and the collectives among them."""
