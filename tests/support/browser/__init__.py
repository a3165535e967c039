"""Chromium, and what the tests do with its pages."""
