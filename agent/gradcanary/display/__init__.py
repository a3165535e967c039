"""A run as pages and notebooks show it: its verdict, its colours, a small picture. Standard library only."""
