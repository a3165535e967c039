"""A Chromium that goes through a recording proxy, and pages that may not complain."""

import os
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
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Error, Page, ViewportSize, expect

from support.browser import chromium, scenes
from support.collectors import Collector
from support.ports import free_port

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
    request_queue_size = 128  # with the 5 of its kind a page that asks for much at once waits a second for a connection

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
        body = self.rfile.read(length) if length else None
        try:
            with self.server.http.stream(self.command, self.path, headers=headers, content=body) as answer:
                self._pass_on(answer)
        except httpx.HTTPError:
            self.send_error(502)

    do_POST = do_GET  # noqa: N815 -- the name that http.server looks for

    def do_CONNECT(self) -> None:
        self.server.hosts.append(self.path.rpartition(":")[0])
        self.send_error(502)

    def _pass_on(self, answer: httpx.Response) -> None:
        # What is streamed is passed on as it comes: the pages show it line by line.
        whole = None if "transfer-encoding" in answer.headers else answer.read()
        self.send_response(answer.status_code)
        for key, value in answer.headers.items():
            if key.lower() not in HOP_BY_HOP:
                self.send_header(key, value)
        self.send_header(*(("Transfer-Encoding", "chunked") if whole is None else ("Content-Length", str(len(whole)))))
        self.end_headers()
        try:
            for piece in answer.iter_bytes() if whole is None else ():
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n" if whole is None else whole)
        except ConnectionError:  # a page that leads on does not wait for what it asked for
            self.close_connection = True

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
    found = chromium.installed()
    return {"args": [*FLAGS, *through], **({"executable_path": found} if found else {})}


@pytest.fixture
def complaints() -> list[str]:
    """What pages complained of; a test that breaks something on purpose clears it."""
    return []


@pytest.fixture(scope="session")
def desk(browser: Browser) -> Iterator[Page]:
    """The tab that tests use one after the other: the scripts of a page are fetched and compiled only once."""
    yield from tab(browser)


POCKET: ViewportSize = {"width": 390, "height": 844}


@pytest.fixture(scope="session")
def pocket(browser: Browser) -> Iterator[Page]:
    """Likewise, the tab of a phone: narrow, and with fingers only."""
    yield from tab(browser, viewport=POCKET, has_touch=True, is_mobile=True)


def tab(browser: Browser, **options: Any) -> Iterator[Page]:
    context = browser.new_context(**options)
    context.set_default_timeout(20_000)
    yield context.new_page()
    context.close()


class Heard:
    """What pages complain of while a test has them."""

    def __init__(self, complaints: list[str]) -> None:
        self.complaints = complaints
        self.pages: list[Page] = []

    def listen(self, page: Page) -> Page:
        self.pages.append(page)
        page.on("console", self._of_console)
        page.on("pageerror", self._of_script)
        page.on("dialog", self._of_dialog)
        return page

    def leave(self) -> None:
        """Stop listening, and what the pages go on to ask."""
        for page in self.pages:
            page.remove_listener("console", self._of_console)
            page.remove_listener("pageerror", self._of_script)
            page.remove_listener("dialog", self._of_dialog)
            page.evaluate("window.location.replace('about:blank')")
            page.wait_for_url("about:blank")

    def _of_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def _of_script(self, error: Error) -> None:
        self.complaints.append(str(error))

    def _of_dialog(self, dialog: Dialog) -> None:
        self.complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()


@pytest.fixture
def heard(proxy: Proxy, complaints: list[str]) -> Iterator[Heard]:
    """No page of a test may log an error, throw, open a dialog or ask another host."""
    proxy.hosts.clear()
    heard = Heard(complaints)
    yield heard
    heard.leave()
    assert complaints == []
    assert set(proxy.hosts) == {"127.0.0.1"}


@pytest.fixture
def open_page(browser: Browser, desk: Page, heard: Heard) -> Iterator[Callable[..., Page]]:
    """Open pages; the first in the shared tab, a second beside it, and in a profile of its own what leaves traces."""
    contexts: list[BrowserContext] = []
    beside: list[Page] = []

    def open_at(url: str, *, theme: Any = "light", alone: bool = False) -> Page:
        if alone:
            contexts.append(browser.new_context())
            page = contexts[-1].new_page()
        elif desk in heard.pages:
            beside.append(desk.context.new_page())
            page = beside[-1]
        else:
            page = desk
        page.set_default_timeout(20_000)
        page.set_viewport_size({"width": 1440, "height": 900})
        # All of it: a test that failed may have left the tab with some of it changed.
        page.emulate_media(media="screen", color_scheme=theme, reduced_motion="null", forced_colors="null")
        heard.listen(page).goto(url)
        return page

    yield open_at
    heard.leave()
    heard.pages.clear()
    for opened in (*beside, *contexts):
        opened.close()


@pytest.fixture
def phone(pocket: Page, heard: Heard) -> Page:
    """A phone; what it shows may not complain either."""
    pocket.set_viewport_size(POCKET)  # another test may have made it wide
    return heard.listen(pocket)


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


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """A collector for all tests that do not end it, with a collapse of 700 steps, one of 400 and a healthy run, and a
    run that was started three times; what a test sends has a name of its own."""
    collector = Collector(tmp_path_factory.mktemp("collector")).start()
    collapse = scenes.collapse(steps=700, blocks=7, at=400)
    scenes.send(collector.url, "lora-collapse", collapse, missing=range(560, 600)).end()
    scenes.send(collector.url, "lora-fell", scenes.collapse(steps=400, blocks=8, at=240))
    scenes.send(collector.url, "lora-quiet", scenes.quiet(steps=120, blocks=8), ended=True)
    scenes.resume(collector.url, "resumed-twice", scenes.quiet(steps=600, blocks=4)).end()
    yield collector
    collector.kill()
