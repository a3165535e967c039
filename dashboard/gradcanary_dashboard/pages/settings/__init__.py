"""The pages of settings, and what they ask of the collector."""
