"""CSV files of numbers: their contents and their writer."""
