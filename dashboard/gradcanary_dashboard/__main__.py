"""``python -m gradcanary_dashboard --collector URL``: the pages in a process of their own."""

from __future__ import annotations

import argparse
import os
import ssl
from collections.abc import Sequence
from ipaddress import ip_address

import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware

from gradcanary_dashboard.app import create_app

DEFAULT_PORT = 8788

LOOPBACK = ("localhost", "*.localhost", "127.0.0.1", "[::1]")
"""Host names of requests; another one would come from an attacker's DNS."""

ENVIRONMENT = """environment: GRADCANARY_TOKEN, a token with the scope read, where the collector asks for one;
GRADCANARY_CA_FILE, the certificate of its authority; GRADCANARY_HOSTS, names of a proxy of yours in front of this"""


def main(argv: Sequence[str] | None = None) -> None:
    """Serve the dashboard until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m gradcanary_dashboard", description="The pages of gradcanary.", epilog=ENVIRONMENT
    )
    parser.add_argument("--collector", required=True, metavar="URL", help="address of a gradcanary collector")
    parser.add_argument("--host", type=_loopback, default="127.0.0.1", help="to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="default: %(default)s")
    arguments = parser.parse_args(argv)
    authority = os.environ.get("GRADCANARY_CA_FILE")
    trusted = ssl.create_default_context(cafile=authority) if authority else None
    app = create_app(arguments.collector, token=os.environ.get("GRADCANARY_TOKEN") or None, trusted=trusted)
    names = [name.strip() for name in os.environ.get("GRADCANARY_HOSTS", "").split(",") if name.strip()]
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, *names], www_redirect=False)
    uvicorn.run(
        app,
        host=arguments.host,
        port=arguments.port,
        lifespan="off",  # Dash would answer unknown addresses as if they were pages
        log_level="warning",
        server_header=False,
    )


def _loopback(host: str) -> str:
    """Return a loopback host: this process has no sign-in, and shows everything that its own token may read."""
    try:
        is_loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise argparse.ArgumentTypeError(
            f"{host!r} is reached by other machines, and these pages ask nobody for a token: use those of the "
            "collector, or put a proxy before this that does"
        )
    return host


if __name__ == "__main__":
    main()
