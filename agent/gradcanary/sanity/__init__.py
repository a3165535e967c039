"""``gradcanary sanity``: a short training, watched at every step, and one page of what is healthy."""
