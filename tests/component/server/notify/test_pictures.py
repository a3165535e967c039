"""Pictures on messages: in time or not at all, drawn as a message is sent, and outside of transactions that write."""

import asyncio
import base64
import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from PIL import Image
from sqlalchemy import select

from gradcanary_server.errors import RequestError
from gradcanary_server.incidents import picture
from gradcanary_server.incidents.picture_data import PictureReader
from gradcanary_server.notify import apprise_channel, endpoints, pictures
from gradcanary_server.notify.dispatcher import Dispatcher
from gradcanary_server.notify.pictures import Pictures
from gradcanary_server.notify.sender import Sender
from gradcanary_server.rules.config import Rules
from gradcanary_server.storage.layers import LayerSetCache
from gradcanary_server.storage.schema import attempt, delivery
from gradcanary_server.tsdb.log import BatchLog
from gradcanary_server.tsdb.reader import Reader
from gradcanary_server.tsdb.tiles import TileStore
from support.server.stores import SLOW, URL
from support.server.transitions import fired
from support.waiting import eventually

PATIENCE_S = 60.0
"""A busy machine is not a picture that hangs."""


@contextmanager
def told(store, draw, *addresses):
    """Run a dispatcher that sends to these services, with pictures."""
    given = apprise_channel.open_channels(addresses)
    with store.database.write() as connection:
        for each in given:
            endpoints.upsert_configured(connection, each, None, store.database.now(connection))
    sender = Sender({channel.key: channel for channel in given.values()}, pictures=Pictures(draw))
    dispatcher = Dispatcher(store.database, SLOW, URL, sender=sender)
    dispatcher.start()
    try:
        yield
    finally:
        dispatcher.stop()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(pictures, "DRAW_S", PATIENCE_S)
    monkeypatch.setattr(apprise_channel, "TIMEOUT_S", PATIENCE_S)


def reader(store):
    return PictureReader(store.database, Reader(BatchLog(LayerSetCache()), TileStore()), Rules())


def test_a_picture_is_drawn_as_its_message_is_sent_and_while_others_may_write(store, receiver_factory, monkeypatch):
    receiver, drawn, draw = receiver_factory(), [], picture.draw

    def draw_beside_a_writer(about):
        drawn.append(len(store.rows(select(delivery))))
        with store.database.write():  # fails on SQLite in a transaction that writes
            drawn.append(threading.current_thread().name)
        return draw(about)

    monkeypatch.setattr(picture, "draw", draw_beside_a_writer)
    store.record(fired(0), fired(1))
    with told(store, reader(store).draw, f"json://127.0.0.1:{receiver.port}/"):
        receiver.wait(1)
        eventually(lambda: store.rows(select(delivery.c.state))[0]["state"] == "delivered")
    assert drawn == [1, "gradcanary-picture"], "its message was queued before"
    [body] = [json.loads(message.body) for message in receiver.got]
    [attached] = body["attachments"]
    assert (attached["filename"], attached["mimetype"]) == ("incident.png", "image/png")
    assert Image.open(io.BytesIO(base64.b64decode(attached["base64"]))).size == (960, 540)


@pytest.mark.parametrize("event", ["opened", "resolved"])
def test_the_end_of_an_incident_has_no_picture(event):
    [channel] = apprise_channel.open_channels(["json://127.0.0.1/"]).values()
    body = b'{"type": "gradient.collapse.%s", "data": {"incident": 31}}' % event.encode()
    assert apprise_channel.pictured_incident(channel, body) == (31 if event == "opened" else None)


def test_a_service_without_files_gets_text_and_nothing_is_drawn():
    [channel] = apprise_channel.open_channels(["pagerduty://0123456789abcdef@abcdefghij"]).values()
    body = b'{"type": "gradient.collapse.opened", "data": {"incident": 31}}'
    assert apprise_channel.pictured_incident(channel, body) is None


def test_a_picture_that_fails_is_logged_once_and_holds_nothing_back(store, receiver_factory, caplog):
    def draw(_):
        raise RequestError(501, "no_pillow", "Pictures need the package Pillow.")

    receiver = receiver_factory()
    store.record(fired(0), fired(1, rule="accumulation_loss"))
    with told(store, draw, f"json://127.0.0.1:{receiver.port}/"):
        receiver.wait(2)
        eventually(lambda: len(store.rows(select(attempt))) == 2)
    assert [json.loads(message.body)["attachments"] for message in receiver.got] == [[], []]
    assert [each["error"] for each in store.rows(select(attempt))] == [None, None]
    [line] = [record.message for record in caplog.records if "picture" in record.message]
    assert line.endswith("RequestError: Pictures need the package Pillow.")


def test_a_picture_that_takes_too_long_is_left_out(monkeypatch, caplog):
    monkeypatch.setattr(pictures, "DRAW_S", 0.05)
    release = threading.Event()
    slow = Pictures(lambda _: release.wait(PATIENCE_S) and b"late")
    with ThreadPoolExecutor(1) as pool:  # the browser tests leave an event loop running in this thread
        assert [pool.submit(asyncio.run, slow.draw_in_time(31)).result() for _ in range(2)] == [None, None]
    release.set()
    assert [record.message for record in caplog.records] == [
        "no picture of incident 31 in a message, later ones are not logged: it takes over 0.05 s"
    ]
