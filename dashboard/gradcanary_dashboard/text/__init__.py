"""Numbers and states as text. Pure."""
