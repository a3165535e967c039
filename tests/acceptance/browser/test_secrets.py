"""Known secrets are given to a collector, and looked for behind every door: logs, pages, answers, errors, exports,
addresses that a browser requests, messages, commands, tables.

PostgreSQL, because its address has a password.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from playwright.sync_api import Browser, Response

from support import postgres, warm
from support.agent.recorded import spooling
from support.browser import addresses, scenes
from support.collectors import Collector
from support.receivers import Receiver, status
from support.server import mcp_calls
from support.streams import Session
from support.waiting import eventually

RUN, CRASHED = "lora-fell", "crashed"
ARGUMENTS = {"run": RUN, "layer": "blocks.4.attn.q.lora_A.weight", "incident": "1", "endpoint": "1", "rule": "collapse"}
FILLED = {**ARGUMENTS, "number": "1"}
QUERIES = {"layer": ARGUMENTS["layer"], "run": RUN}
GIVEN = {
    "database password": postgres.PASSWORD,
    "database password, quoted": postgres.QUOTED,
    "key in the path of a webhook": "pathkey0123456789abcdef",
    "key in the query of a webhook": "querykey0123456789",
    "secret of a webhook": "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "secret of an endpoint over HTTP": "b3RoZXItc2VjcmV0LW9mLWFuLWVuZHBvaW50LTAx",
    "password of a service": "mailpassw0rd",
    "password that is refused": "refusedpassw0rd",
    "token of a training": "hf_abcdefghijklmnop1234",
    "password in a training's error": "errorpassw0rd",
    "token that opens nothing": "gc_read_" + "w" * 43,
}
TRAINING = f"""
import torch, gradcanary
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
gradcanary.watch(model, optimizer, run="{CRASHED}")
for _ in range(4):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
raise RuntimeError("no route to https://ada:{GIVEN["password in a training's error"]}@nas.example/data")
"""


@dataclass
class Place:
    """A collector that was given all of it; ``said`` is what came through a door, by its name."""

    collector: Collector
    tokens: dict[str, str]
    receiver: Receiver
    said: dict[str, str] = field(default_factory=dict)

    def client(self, scope: str = "admin") -> httpx.Client:
        headers = {"authorization": f"Bearer {self.tokens[scope]}"}
        return httpx.Client(base_url=self.collector.url, headers=headers, timeout=60, trust_env=False)

    def told_at_the_start(self) -> str:
        """Return the log without its lines that show a secret once, at the first start, because they are asked to."""
        return "".join(line for line in self.collector.output if "gc_" not in line)

    def leaks(self, texts: dict[str, str], *, but: tuple[str, ...] = ()) -> list[tuple[str, str]]:
        """Return the name of each secret in these texts, with the door where it stands."""
        secrets = {**GIVEN, **{f"token, {scope}": secret for scope, secret in self.tokens.items()}}
        return [
            (name, door)
            for name, secret in secrets.items()
            for door, text in texts.items()
            if secret in text and name not in but
        ]


@pytest.fixture(scope="module")
def place(postgres_server: postgres.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("secrets")
    receiver = Receiver(*[status(500)] * 1_000)  # so each endpoint has an error
    hook = f"{receiver.url}/{GIVEN['key in the path of a webhook']}?key={GIVEN['key in the query of a webhook']}"
    (folder / "notify").write_text(f"json://ada:{GIVEN['password of a service']}@127.0.0.1:{receiver.port}/notify\n")
    env = {
        "GRADCANARY_NOTIFY_FILE": str(folder / "notify"),
        "GRADCANARY_WEBHOOK_SECRET": "whsec_" + GIVEN["secret of a webhook"],
        "GRADCANARY_WEBHOOK_NETWORKS": "127.0.0.0/8",
    }
    arguments = ("--auth", "--webhook", hook)
    collector = Collector(folder, arguments, env, db=postgres_server.create_store()).start()
    first = re.findall(r"gc_(\w+?)_[\w-]+", said := "".join(collector.output))
    place = Place(collector, dict(zip(first, re.findall(r"gc_\w+?_[\w-]+", said), strict=True)), receiver)
    with place.client() as admin:
        fill(place, admin, hook)
    train(place, folder)
    yield place
    collector.kill()
    receiver.close()


def fill(place: Place, admin: httpx.Client, hook: str) -> None:
    """Make tokens, an endpoint and an incident, and wait until each endpoint has failed."""
    made = admin.post("/api/v1/tokens", json={"name": "wall", "scope": "read"})
    place.tokens["read"] = made.json()["secret"]
    endpoint = {"url": f"{hook}&over=http", "secret": "whsec_" + GIVEN["secret of an endpoint over HTTP"]}
    admin.post("/api/v1/endpoints", json=endpoint).raise_for_status()  # its answer has the secret, once
    with place.client("ingest") as client:
        Session(place.collector.url, run=RUN, client=client).send(scenes.collapse(steps=240, blocks=7, at=140))
    eventually(lambda: all(each["last_error"] for each in admin.get("/api/v1/endpoints").json()["endpoints"]))


def train(place: Place, folder: Path) -> None:
    """Let a real training crash, with secrets in its command and in its error."""
    (folder / "train.py").write_text(TRAINING)
    told = {"GRADCANARY_URL": place.collector.url, "GRADCANARY_TOKEN": place.tokens["ingest"]}
    words = [str(folder / "train.py"), f"--hub-token={GIVEN['token of a training']}", "--password"]
    process = warm.Process(
        warm.TRAINING, [*words, GIVEN["password in a training's error"]], {**spooling(folder), **told}
    )
    with process.stdout as lines:
        said = lines.read()
    assert process.wait(60) == 1, said
    place.said["agent"] = "".join(line for line in said.splitlines() if "gradcanary:" in line)
    with place.client() as admin:
        found = admin.get(f"/api/v1/runs/{CRASHED}").json()
    assert found["state"] == "crashed", said


def test_no_answer_has_one(place: Place) -> None:
    """Each route that can be read, of both runs, as each who may read; and what is public."""
    with place.client() as admin:
        paths = [path for path, item in admin.get("/api/v1/openapi.json").json()["paths"].items() if "get" in item]
    answered, texts = set(), {}
    for scope in ("admin", "read", "ingest"):
        with place.client(scope) as client:
            for path in (*paths, "/api/v1/openapi.json"):
                for run in (RUN, CRASHED):
                    filled = path.format(**{**FILLED, "run": run})
                    answer = client.get(filled, params=QUERIES if path.endswith(("series", "preview")) else {})
                    texts[f"{scope} {filled}"] = f"{answer.headers} {answer.text}"
                    answered |= {path} if answer.status_code == 200 else set()
    assert set(paths) - answered == set(), "each was answered to one of them"
    assert place.leaks({**place.said, **texts}) == []


def test_no_refusal_has_one(place: Place) -> None:
    wrong, refused = GIVEN["token that opens nothing"], GIVEN["password that is refused"]
    texts = {}
    with place.client() as admin:
        for path, body in (
            ("/api/v1/endpoints", {"url": f"https://ada:{refused}@example.org/hook"}),
            ("/api/v1/endpoints/1/test", {}),
            ("/api/v1/endpoints/2/test", {}),
            ("/api/v1/tokens", {"name": "wall", "scope": "read"}),
            ("/api/v1/tokens", [GIVEN["token of a training"]]),
        ):
            texts[f"POST {path}"] = admin.post(path, json=body).text
        for headers in ({"authorization": f"Bearer {wrong}"}, {"cookie": f"gradcanary={wrong}"}, {}):
            with httpx.Client(base_url=place.collector.url, headers=headers, trust_env=False) as stranger:
                for path in ("/api/v1/runs", f"/api/v1/runs?token={place.tokens['admin']}", "/mcp", "/_refresh"):
                    answer = stranger.post(path, json={}) if path[1] in "m_" else stranger.get(path)
                    assert answer.status_code in (401, 403), path
                    texts[f"{path} {headers}"[:40]] = f"{answer.headers} {answer.text}"
        signed = httpx.post(f"{place.collector.url}/sign-in", data={"token": wrong, "next": "/runs"}, trust_env=False)
        texts["sign-in"] = f"{signed.headers} {signed.text}"
        for tool, arguments in (("list_runs", {}), ("why_is_run_sick", {"run": RUN}), ("list_incidents", {})):
            texts[tool] = json.dumps(mcp_calls.call(admin, tool, place.tokens["admin"], **arguments))
    assert place.leaks(texts) == []


def test_no_page_has_one_and_no_browser_requests_one(place: Place, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    responses: list[Response] = []
    page.on("response", lambda response: responses.append(response))
    page.goto(place.collector.url)
    page.get_by_label("Access token").fill(place.tokens["admin"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector(".brand")
    responses.clear()  # of the sign-in no body is left
    texts, urls = {}, []
    for run in (RUN, CRASHED):
        visited = addresses.of_each({**ARGUMENTS, "run": run}, {"compare": f"?run={RUN}&run={CRASHED}"})
        for path in visited.values():
            page.goto(place.collector.url + path)
            page.wait_for_load_state("networkidle")
            texts[f"page {path}"] = page.content()
            for response in responses:
                urls.append(response.url)
                if "/assets/" not in response.url and response.ok and response.status != 204:
                    texts[f"{path} got {response.url}"] = response.text()
            assert f"{path} got {place.collector.url}{path}" in texts
            page.goto("about:blank")  # what this page still asks for would come among the responses of the next
            responses.clear()
    context.close()
    assert any("lora_A" in text for door, text in texts.items() if door.startswith("page"))
    assert place.leaks({**texts, "urls": "\n".join(urls)}) == []


def test_no_command_has_one(place: Place, typed: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("GRADCANARY_URL", place.collector.url)
    monkeypatch.setenv("GRADCANARY_TOKEN", place.tokens["admin"])
    db = place.collector.db
    texts = {
        " ".join(map(str, words))[:30]: "".join(typed(*words)[1:])
        for words in (
            ("runs",),
            ("incidents",),
            ("incidents", "1"),
            ("endpoints",),
            ("export", RUN),
            ("doctor",),
            ("token", "list", "--db", db),
            ("backup", tmp_path / "copy.db", "--db", db),
        )
    }
    for address in (
        re.sub(r"@.*", "@127.0.0.1:9/nothing", db),
        db.replace(postgres.QUOTED, GIVEN["password that is refused"]),
        db.replace("postgresql", "mysql"),
    ):
        process = warm.Process(
            warm.COLLECTOR, ["-m", "gradcanary.cli", "up", "--port", "0", "--db", address], os.environ
        )
        with process.stdout as lines:
            texts[address] = lines.read()
        assert process.wait(60) == 2, texts[address]
    assert all(texts.values())
    assert place.leaks(texts) == []


def test_no_message_and_no_table_has_one(place: Place) -> None:
    """Of a secret that another program has to be given, the table of endpoints has what is sent, and nothing else."""
    bodies = {f"message to {each.path[:8]}": each.body.decode() for each in place.receiver.got}
    assert len(bodies) == 2, "webhooks, and the service"
    assert place.leaks(bodies) == []
    with psycopg.connect(place.collector.db) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        rows = {name: str(connection.execute(f'SELECT * FROM "{name}"').fetchall()) for (name,) in names}
    known = tuple(name for name in GIVEN if "webhook" in name or "endpoint" in name)
    assert place.leaks({"endpoint": rows.pop("endpoint")}, but=known) == []
    assert "lora_A" in "".join(rows.values())
    assert place.leaks(rows) == []


def test_no_log_has_one(place: Place) -> None:
    """The last one: it has read all that the others caused."""
    assert place.leaks({"log": place.told_at_the_start()}) == []
    log = "".join(place.collector.output)
    assert [log.count(secret) for secret in place.tokens.values()] == [1, 1, 0], "two at the first start"
    assert not any(secret in log for secret in GIVEN.values())
