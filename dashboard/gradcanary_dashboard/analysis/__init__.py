"""From the API's JSON to what it means: launches, gaps, levels, differences, verdicts. Pure."""
