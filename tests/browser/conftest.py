"""A Chromium that goes through a recording proxy, and pages that may not complain."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import scenes
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

expect.set_options(timeout=15_000)  # a page of ten figures takes its time on a machine that does other things

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # Chromium's own services (accounts, updates, autofill) go to a closed port: what is left are the page's requests.
    "--gaia-url=http://127.0.0.1:9",
    "--component-updater=disable-background-downloads,url-source=http://127.0.0.1:9/",
    "--autofill-server-url=http://127.0.0.1:9/",
)
HOP_BY_HOP = {"connection", "proxy-connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding"}


class Proxy(ThreadingHTTPServer):
    """An HTTP proxy that writes down every host it is asked for and forwards to loopback only."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        self.hosts: list[str] = []
        # uvicorn drops a connection that is idle for 5 s: one that is about to go must not be used again.
        self.http = httpx.Client(timeout=30, trust_env=False, limits=httpx.Limits(keepalive_expiry=2))


class _Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_GET(self) -> None:
        host = urlsplit(self.path).hostname or self.path
        self.server.hosts.append(host)
        if host != "127.0.0.1":
            self.send_error(502)
            return
        length = int(self.headers.get("Content-Length") or 0)
        headers = {key: value for key, value in self.headers.items() if key.lower() not in HOP_BY_HOP}
        try:
            answer = self.server.http.request(
                self.command, self.path, headers=headers, content=self.rfile.read(length) if length else None
            )
        except httpx.HTTPError:
            self.send_error(502)
            return
        self._pass_on(answer)

    do_POST = do_GET  # noqa: N815 -- the name that http.server looks for

    def do_CONNECT(self) -> None:
        self.server.hosts.append(self.path.rpartition(":")[0])
        self.send_error(502)

    def _pass_on(self, answer: httpx.Response) -> None:
        self.send_response(answer.status_code)
        for key, value in answer.headers.items():
            if key.lower() not in HOP_BY_HOP:
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="session")
def proxy() -> Iterator[Proxy]:
    server = Proxy()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
    server.http.close()


@pytest.fixture(scope="session")
def browser_type_launch_args(proxy: Proxy) -> dict[str, Any]:
    """Start Debian's Chromium where there is one, else Playwright's own; loopback too goes through the proxy."""
    through = [f"--proxy-server=http://127.0.0.1:{proxy.server_port}", "--proxy-bypass-list=<-loopback>"]
    found = shutil.which("chromium")
    return {"args": [*FLAGS, *through], **({"executable_path": found} if found else {})}


@pytest.fixture
def complaints() -> list[str]:
    """What pages complained of; a test that breaks something on purpose clears it."""
    return []


@pytest.fixture
def open_page(browser: Browser, proxy: Proxy, complaints: list[str]) -> Iterator[Callable[..., Page]]:
    """Open pages with a size and a system theme; none may log an error, throw, or ask another host."""
    proxy.hosts.clear()
    opened: list[Page] = []

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error":
            complaints.append(message.text)

    def open_at(url: str, *, width: int = 1440, height: int = 900, theme: Any = "light") -> Page:
        page = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme).new_page()
        opened.append(page)
        page.set_default_timeout(20_000)
        page.on("console", heard)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
        page.goto(url)
        return page

    yield open_at
    for page in opened:
        page.context.close()
    assert complaints == []
    assert set(proxy.hosts) == {"127.0.0.1"}


WITHOUT_SERVER = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "gradcanary_server":
            raise ImportError("the dashboard must not need the server package")
sys.meta_path.insert(0, Refuse())
"""


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Start ``python -m gradcanary_dashboard`` where the server package cannot be imported; returns its address."""
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "sitecustomize.py").write_text(WITHOUT_SERVER)
    started: list[subprocess.Popen[bytes]] = []

    def start(collector_url: str) -> str:
        url = f"http://127.0.0.1:{free_port()}"
        path = os.pathsep.join([str(tmp_path / "blocked"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}
        refused = subprocess.run(
            [sys.executable, "-c", "import gradcanary_server"], env=environment, capture_output=True
        )
        assert b"must not need" in refused.stderr
        command = [sys.executable, "-m", "gradcanary_dashboard", "--collector", collector_url]
        started.append(subprocess.Popen([*command, "--port", url.rpartition(":")[2]], env=environment))
        await_answer(url, started[-1])
        return url

    yield start
    for process in started:
        process.kill()
        process.wait()


def free_port() -> int:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        return server.server_port


def await_answer(url: str, process: "subprocess.Popen[bytes]", timeout_s: float = 60.0) -> None:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        assert process.poll() is None, "the dashboard ended"
        try:
            if httpx.get(url, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    pytest.fail("the dashboard did not start")


@pytest.fixture(scope="module")
def module_runs(module_collector: Any) -> Any:
    """A collector with a collapse of 700 steps and a run that was started three times."""
    url = module_collector.url
    scenes.send(url, "lora-collapse", scenes.collapse(steps=700, blocks=7, at=400), missing=range(560, 600)).end()
    scenes.resume(url, "resumed-twice", scenes.quiet(steps=600, blocks=4)).end()
    return module_collector


@pytest.fixture
def phone(browser: Browser, module_runs: Any) -> Iterator[Page]:
    """A phone: narrow, and with fingers only."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    context.set_default_timeout(20_000)
    yield context.new_page()
    context.close()
