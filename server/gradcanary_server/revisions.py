"""Which shape the tables have, and how they get that of this version: Alembic, with the migrations of gradcanary."""

from functools import lru_cache

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection


def revision(connection: Connection) -> str | None:
    """Return the revision of the tables, None where there are none."""
    return MigrationContext.configure(connection).get_current_revision()


@lru_cache(maxsize=1)
def newest_revision() -> str:
    """Return the revision that this version works with."""
    return str(ScriptDirectory.from_config(config()).get_current_head())


def upgrade(connection: Connection) -> tuple[str | None, str]:
    """Bring the tables to this version's shape; return the revision that they had, None = none, and the new one.

    Raises Alembic's CommandError where a newer version wrote them.
    """
    settings = config()
    settings.attributes["connection"] = connection
    before = revision(connection)
    command.upgrade(settings, "head")
    return before, str(revision(connection))


def config() -> Config:
    """Return where Alembic finds the migrations."""
    settings = Config()
    settings.set_main_option("script_location", "gradcanary_migrations:")
    settings.set_main_option("path_separator", "os")
    return settings
