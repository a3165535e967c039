"""Whether a collector on this machine takes requests, over TLS or without: what the image asks itself.

python -m gradcanary_server.health [PORT]
"""

import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection

PORT = 8787
TIMEOUT_S = 2.0


def main() -> int:
    """Return 0 where ``/healthz`` answers, else say why not and return 1."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else PORT
    # Its certificate is for the name by which others know it.
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    said = _said(HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S))
    if said != "200":
        said = f"{said}; over TLS: {_said(HTTPSConnection('127.0.0.1', port, timeout=TIMEOUT_S, context=anybody))}"
    if said.endswith("200"):
        return 0
    print(said, file=sys.stderr)  # noqa: T201 -- docker inspect shows it
    return 1


def _said(connection: HTTPConnection) -> str:
    try:
        connection.request("GET", "/healthz")
        return str(connection.getresponse().status)
    except (OSError, HTTPException) as error:
        return str(error)
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
