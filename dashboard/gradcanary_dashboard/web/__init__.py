"""Plumbing of Starlette and Dash: documents, assets, threads, streams. It imports no page."""
