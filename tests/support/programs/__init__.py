"""Scripts that a test, or a picture of the documents, starts as a process of its own."""
