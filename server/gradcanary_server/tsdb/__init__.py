"""Time series of measurements: batch log, tiles, rollups, queries."""
