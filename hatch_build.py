"""Copies the pages of ``gradcanary explain`` and ``runbook`` into a wheel; an editable install reads them in place.

hatchling's ``force-include`` copies for an editable installation, too: that left a folder ``gradcanary`` without code
in ``site-packages``, which other Pythons that have it on their path take for the package.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KnowledgePages(BuildHookInterface):
    """The pages, in ``gradcanary/knowledge``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add them to what a wheel has."""
        if version != "editable":
            build_data["force_include"]["docs/knowledge"] = "gradcanary/knowledge"
            build_data["force_include"]["docs/runbooks"] = "gradcanary/knowledge/runbooks"
