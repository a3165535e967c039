"""The version of the agent, as it tells it to the collector."""

__version__ = "0.1.0"
