"""Routes without Dash: refreshes, figures on demand, files of numbers."""
