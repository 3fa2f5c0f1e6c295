"""What the partitioner's first half (Shardy) makes of a whole function: layouts on every value, who moves what, and why."""
