"""What a click changes: callbacks that send something to the collector."""
