"""Evidence: what a compiled program holds, read from its text; and programs compiled for devices that are not attached."""
