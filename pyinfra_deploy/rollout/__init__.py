"""The fleet over time: which hosts in which order, what stops it, how it is told."""
