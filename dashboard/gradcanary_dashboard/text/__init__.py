"""From numbers and states to the words that people read. Pure."""
