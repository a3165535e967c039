"""``python -m gradcanary.cli``: the command line without its script on PATH."""

from gradcanary.cli import main

raise SystemExit(main())
