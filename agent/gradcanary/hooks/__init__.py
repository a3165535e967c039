"""Thin adapters over torch, independent of the rest of the agent: the only folder with private torch API."""
