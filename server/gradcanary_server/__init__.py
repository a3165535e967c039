"""The collector of gradcanary."""
