"""Benchmarks: each module is run by a target of the Makefile and writes to docs/benchmarks."""
