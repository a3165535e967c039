"""Copies the pages of ``gradcanary explain`` into a wheel; an editable installation reads them where they are.

hatchling's ``force-include`` copies for an editable installation, too: that left a folder ``gradcanary`` without code
in ``site-packages``, which other Pythons that have it on their path take for the package.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KnowledgePages(BuildHookInterface):
    """The pages, as ``gradcanary/knowledge``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add them to what a wheel has."""
        if version != "editable":
            build_data["force_include"]["docs/knowledge"] = "gradcanary/knowledge"
