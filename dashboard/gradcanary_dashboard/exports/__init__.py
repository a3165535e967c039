"""Files of numbers: what each holds, and how a table becomes CSV."""
