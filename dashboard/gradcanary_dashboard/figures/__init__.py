"""Figures as plain dictionaries for Plotly. Pure."""
