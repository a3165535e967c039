"""The pages of gradcanary: a Dash app that knows the collector only through its HTTP API."""
