"""``python -m gradcanary_dashboard --collector URL``: the pages in a process of their own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import uvicorn

from gradcanary_dashboard.app import create_app

DEFAULT_PORT = 8788


def main(argv: Sequence[str] | None = None) -> None:
    """Serve the dashboard until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m gradcanary_dashboard", description="The pages of gradcanary.")
    parser.add_argument("--collector", required=True, metavar="URL", help="address of a gradcanary collector")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="default: %(default)s")
    arguments = parser.parse_args(argv)
    uvicorn.run(create_app(arguments.collector), host=arguments.host, port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
