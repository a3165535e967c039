"""Stores, clocks, disks and faults."""
