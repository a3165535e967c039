"""The check of a release: ``make release``, and docs/contributing/releasing.md."""
