"""Accumulation windows and optimizer steps, on the training thread."""
