"""The part of a page's state that is in its URL. Pure."""
