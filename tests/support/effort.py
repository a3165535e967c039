"""How long tests that draw at random go on: ``GRADCANARY_TEST_EFFORT=50`` for a night, 50 times as much as in CI."""

import os

EFFORT = int(os.environ.get("GRADCANARY_TEST_EFFORT", "1"))
