"""Devices that are not attached: their meshes, functions brought there, and their compilers, here or in a child process."""
