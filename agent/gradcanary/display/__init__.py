"""A run as pages and notebooks show it: its verdict, its colours, its live page in a cell. Standard library only."""
