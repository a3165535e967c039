"""Thin adapters over torch, which know nothing of the agent. All private torch API is here and nowhere else."""
