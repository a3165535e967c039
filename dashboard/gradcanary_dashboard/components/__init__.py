"""What pages are made of, as components of Dash. Pure: nothing is asked of the collector here."""
