"""A webhook receiver on loopback that misbehaves as told, and remembers every body it read."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook

Answer = Callable[["Handler"], None]


@dataclass(frozen=True)
class Received:
    at: float
    headers: dict[str, str]
    body: bytes
    port: int
    """Of the sender."""
    is_taken: bool = True
    """Unless it was answered that it was not."""
    path: str = "/hook"

    @property
    def id(self):
        return self.headers["webhook-id"]

    @property
    def type(self):
        return json.loads(self.body)["type"]

    @property
    def data(self):
        return json.loads(self.body)["data"]


class Receiver:
    """Answers 200 unless ``answers`` holds something else for the next requests; ``got`` is in the order of arrival."""

    def __init__(self, *answers: Answer, host: str = "127.0.0.1", port: int = 0) -> None:
        self.answers = list(answers)
        self.got: list[Received] = []
        self.arrived = threading.Condition()
        self.release = threading.Event()
        self.server = ThreadingHTTPServer((host, port), Handler)
        self.server.daemon_threads = True
        self.server.receiver = self
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}/hook"

    @property
    def port(self):
        return self.server.server_port

    def wait(self, count, seconds=60):
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.got) >= count, seconds), [m.type for m in self.got]
        return self.got

    def close(self):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()

    def verified(self, secret):
        return [Webhook(secret).verify(message.body, message.headers) for message in self.got]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        receiver = self.server.receiver
        body = self.rfile.read(length := int(self.headers["Content-Length"]))
        if len(body) < length:
            return  # who sent it was killed meanwhile: nobody takes half a message
        with receiver.arrived:
            answer = receiver.answers.pop(0) if receiver.answers else status(200)
            headers = {k.lower(): v for k, v in self.headers.items()}
            is_taken = getattr(answer, "code", 200) < 300
            receiver.got.append(Received(time.time(), headers, body, self.client_address[1], is_taken, self.path))
            receiver.arrived.notify_all()
        answer(self)

    def log_message(self, *_):
        pass


def status(code, **headers) -> Answer:
    def answer(handler):
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    answer.code = code
    return answer


def accepted(body: bytes) -> Answer:
    """Answer 202 and a body."""

    def answer(handler):
        handler.send_response(202)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def hang(handler):
    """Read the body and say nothing until the test is over."""
    handler.server.receiver.release.wait(120)
    handler.close_connection = True


def close_mid_answer(handler):
    handler.wfile.write(b"HTTP/1.1 2")
    handler.wfile.flush()
    # A reset, not a polite end.
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True


def flood(handler):
    """Answer 200 and a body without end."""
    handler.send_response(200)
    handler.end_headers()
    try:
        while not handler.server.receiver.release.is_set():
            handler.wfile.write(b"x" * 65536)
    except OSError:
        handler.close_connection = True


def trickle(handler):
    """Answer 200, and a body that comes a byte at a time."""
    handler.send_response(200)
    handler.end_headers()
    _go_on(handler, b"x", 0.05)


def stutter(handler):
    """Send headers, one every now and then, and never come to their end."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    _go_on(handler, b"X-More: yes\r\n", 0.05)


def babble(handler):
    """Send headers without end, as fast as they are taken."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    _go_on(handler, b"X-More: yes\r\n" * 1000, 0.0)


def _go_on(handler, piece, pause_s):
    try:
        while not handler.server.receiver.release.wait(pause_s):
            handler.wfile.write(piece)
    except OSError:
        pass
    handler.close_connection = True


SECRET = "whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="
