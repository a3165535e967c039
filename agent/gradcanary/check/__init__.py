"""``gradcanary check``: mistakes of mixed precision and accumulation, found in Python source that is never run."""
