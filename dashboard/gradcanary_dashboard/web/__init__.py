"""Starlette and Dash: documents, files, threads, streams. Knows no page."""
