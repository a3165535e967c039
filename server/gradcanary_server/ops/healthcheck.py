"""The health check of the container image: does a collector on this machine answer, over TLS or without?

python -m gradcanary_server.ops.healthcheck [PORT]
"""

import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection

PORT = 8787
TIMEOUT_S = 2.0


def main() -> int:
    """Return 0 if ``/healthz`` answers, else print the reason and return 1."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else PORT
    # The certificate is for the public name, not for 127.0.0.1.
    trust_all = ssl.create_default_context()
    trust_all.check_hostname, trust_all.verify_mode = False, ssl.CERT_NONE
    result = _request(HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S))
    if result != "200":
        over_tls = _request(HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=trust_all))
        result = f"{result}; over TLS: {over_tls}"
    if result.endswith("200"):
        return 0
    print(result, file=sys.stderr)  # noqa: T201 -- docker inspect shows it
    return 1


def _request(connection: HTTPConnection) -> str:
    try:
        connection.request("GET", "/healthz")
        return str(connection.getresponse().status)
    except (OSError, HTTPException) as error:
        return str(error)
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
