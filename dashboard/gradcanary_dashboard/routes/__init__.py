"""Routes that the browser asks past Dash: refreshes, figures on demand, files of numbers."""
