"""Meaning of the API's JSON: launches, gaps, levels, differences, verdicts. Pure."""
