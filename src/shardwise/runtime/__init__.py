"""Action: devices, arrays, files, and the lowering of programs to JAX."""
