"""A compiled schedule, replayed on a model of one device and its links."""
