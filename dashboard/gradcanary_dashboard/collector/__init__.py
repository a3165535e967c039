"""What is asked of the collector, over its HTTP API."""
