"""Trainings, and the collectors that record them."""
