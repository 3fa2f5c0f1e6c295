"""Evidence: what the compilers make of a program, for devices at hand or not attached."""
