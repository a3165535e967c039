"""Incidents: their lifecycle, tables, texts, causes and silences, and runs that go silent or stall."""
