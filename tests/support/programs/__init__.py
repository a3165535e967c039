"""Scripts that a test starts as a process of its own."""
