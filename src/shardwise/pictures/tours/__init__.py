"""Tours: collectives and the cases of sharded multiplication, step by step with real numbers."""
