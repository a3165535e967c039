"""A collector that others reach: with TLS and tokens."""

import ssl
from pathlib import Path

import httpx
import trustme

from support.collectors import Collector

WEBHOOK_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Guarded(Collector):
    """A collector on every address of the machine, with a certificate for ``localhost``."""

    def __init__(self, folder: Path, *more: str) -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost")
        self.authority, chain, key = (folder / name for name in ("authority.pem", "chain.pem", "key.pem"))
        authority.cert_pem.write_to_path(str(self.authority))
        chain.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
        certificate.private_key_pem.write_to_path(str(key))
        arguments = ("--host", "0.0.0.0", "--tls-cert", str(chain), "--tls-key", str(key))
        env = {"GRADCANARY_WEBHOOK_SECRET": WEBHOOK_SECRET, "GRADCANARY_PROXIES": "127.0.0.1, 10.0.0.0/8"}
        super().__init__(folder / "data", (*arguments, "--webhook", "http://127.0.0.1:9/hook", *more), env)
        self.context = ssl.create_default_context(cafile=str(self.authority))

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def said(self, beginning: str) -> str:
        """Return the last word of the one line that begins so."""
        [line] = [line for line in self.output if line.startswith(beginning)]
        return line.split()[-1]

    def client(self, token: str | None = None) -> httpx.Client:
        given = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, verify=self.context, headers=given, timeout=30, trust_env=False)
