"""The rules of gradient health: detectors, their counters and their state. Pure: no I/O, no clock."""
