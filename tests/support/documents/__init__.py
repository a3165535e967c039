"""What makes parts of the documents from the code: ``python tests/support/documents/<name>.py --write``."""
