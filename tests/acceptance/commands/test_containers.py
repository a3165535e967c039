"""The image and docker-compose.yml, as far as they can be tried without Docker: what is said in them is run here."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml
from compose_spec import PyCompose

from gradcanary_server.errors import SettingsError
from gradcanary_server.settings import Settings
from support import postgres
from support.collectors import Collector

ROOT = Path(__file__).parents[3]
PORT = "8787"


@pytest.fixture(scope="module")
def compose():
    return read_compose("docker-compose.yml")


def read_compose(name):
    """Return the file as Compose reads it: what is unknown or of a wrong kind is an error."""
    merged = yaml.safe_load((ROOT / name).read_text())  # Compose knows "<<", this reader does not
    read = PyCompose.from_yaml(yaml.safe_dump(merged, sort_keys=False))
    read.validate()
    return read.to_dict()


def instructions(name):
    """Return what the Dockerfile says under a name, continued lines joined."""
    joined = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.partition(" ")[2].strip() for line in joined.splitlines() if line.startswith(f"{name} ")]


def listed(text):
    """Return the words of an instruction that gives them as JSON."""
    return json.loads(text[text.index("[") :])


FAULTS = """
import resource, threading
found = []
def work():
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            [b"x" * 2**21 for _ in range(10)]
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(found[-1])
"""
"""As a question is answered: in a thread, by some arrays of megabytes at a time."""


def faults(**environment):
    """Return the pages that the kernel gives a process that makes 20 MiB ten times, having done so before."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    asked = [sys.executable, "-c", FAULTS]
    return int(subprocess.run(asked, env=others | environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="another C library")
def test_the_image_uses_freed_memory_again():
    given = dict(word.split("=", 1) for line in instructions("ENV") for word in line.split())
    assert faults(**{name: value for name, value in given.items() if name.startswith("MALLOC_")}) < 100
    assert faults() > 10_000


def test_the_commands_of_the_containers_serve_a_store(compose, postgres_server, tmp_path):
    [entry] = map(listed, instructions("ENTRYPOINT"))
    service = compose["services"]["gradcanary"]
    up, host, address, db, url = service["command"]
    assert [*entry, up, host, address, db] == ["gradcanary", "up", "--host", "0.0.0.0", "--db"]
    [name] = re.findall(r"postgresql://gradcanary@db/(\w+)", url)
    postgres_server.execute(f"CREATE DATABASE {name} TEMPLATE template0 OWNER {postgres.OWNER}")
    secret = tmp_path / "db_password"
    secret.write_text(f"{postgres.PASSWORD}\n")
    # Compose's network finds the host "db"; here libpq is told where it is.
    env = {"PGHOSTADDR": "127.0.0.1", "PGPORT": str(postgres_server.port), "GRADCANARY_DB_PASSWORD_FILE": str(secret)}
    collector = Collector(tmp_path, (host, address), env | files(compose, tmp_path), url).start()
    try:
        said = "".join(collector.output)
        assert f"rules are those of {tmp_path / 'rules'}\n" in said
        assert "incidents are sent to http://127.0.0.1:9/hook, critical and above\nincidents are sent to JSON\n" in said
        assert "webhook secret" not in said, "it is the one that was given"
        assert collector.get("/api/v1/runs").status_code == 401, "others reach it, so it asks for a token"
        assert health(collector.port) == 0
    finally:
        collector.kill()
    assert health(collector.port) != 0
    assert postgres.PASSWORD not in "".join(collector.output)


FILES = {
    "webhook": "critical=http://127.0.0.1:9/hook\n",
    "webhook_secret": "whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU=\n",
    "notify": "# on call\njson://127.0.0.1:9\n",
    "rules": "version: 1\n",
}


def files(compose, folder):
    """Write what an operator may give, and return what the service is told of it: the files where it finds them."""
    environment, told = compose["services"]["gradcanary"]["environment"], {}
    for name, text in FILES.items():
        key = f"GRADCANARY_{name.upper()}_FILE"
        assert environment[key] == f"${{{key}:+/run/secrets/{name}}}", "told of nothing where nothing is named"
        assert compose["secrets"][name]["file"] == f"${{{key}:-/dev/null}}"
        (folder / name).write_text(text)
        told[key] = str(folder / name)
    return told


def test_files_that_nobody_named_are_none(tmp_path):
    keys = [f"GRADCANARY_{name.upper()}_FILE" for name in FILES]
    settings = Settings.from_env(dict.fromkeys(keys, ""), data=tmp_path)
    assert settings == Settings.from_env({}, data=tmp_path)
    named = Settings.from_env({"GRADCANARY_RULES_FILE": "/etc/rules"}, data=tmp_path, rules=Path("mine"))
    assert named.rules == Path("mine"), "the command line is asked first"


def health(port):
    """Return the status of the image's own check, asked of another port."""
    [check] = map(listed, instructions("HEALTHCHECK"))
    assert check[0] == "python"
    said = subprocess.run([sys.executable, *(word.replace(PORT, str(port)) for word in check[1:])], capture_output=True)
    return said.returncode


def test_the_services_fit_each_other(compose):
    db, gradcanary = compose["services"]["db"], compose["services"]["gradcanary"]
    given = db["environment"]
    assert given["POSTGRES_USER"] == given["POSTGRES_DB"] == "gradcanary"
    assert given["POSTGRES_PASSWORD_FILE"] == gradcanary["environment"]["GRADCANARY_DB_PASSWORD_FILE"]
    assert given["POSTGRES_PASSWORD_FILE"] == "/run/secrets/db_password"
    assert db["secrets"] == ["db_password"]
    assert gradcanary["secrets"] == list(compose["secrets"]) == ["db_password", *FILES]
    assert gradcanary["depends_on"]["db"]["condition"] == "service_healthy"
    assert "pg_isready" in db["healthcheck"]["test"]
    assert [service["stop_grace_period"] for service in (db, gradcanary)] == ["1m30s", "30s"], "10 s are not enough"
    assert list(compose["volumes"]) == ["db"]
    assert db["volumes"][0].startswith("db:")
    [port] = gradcanary["ports"]
    assert (str(port["target"]), port["published"]) == (PORT, "8787-8790"), "room for several"
    assert "container_name" not in gradcanary, "a name would keep it from being scaled"


def test_the_services_of_a_cluster_fit_each_other():
    compose = read_compose("docker-compose.citus.yml")
    services = compose["services"]
    nodes = {name: services[name] for name in ("coordinator", "worker1", "worker2")}
    set_up, tables, gradcanary = (services.pop(name) for name in ("nodes", "tables", "gradcanary"))
    assert services == nodes
    assert {node["image"] for node in (*nodes.values(), set_up)} == {"citusdata/citus:13.0.3-pg15"}
    for name, node in nodes.items():
        settings = dict(word.removeprefix("--").split("=") for word in node["command"][1:])
        assert settings["synchronous_commit"] == "on", "a collector refuses another one"
        assert int(settings["max_prepared_transactions"]) >= int(settings["max_connections"]) >= 300
        assert node["environment"]["POSTGRES_DB"] == node["environment"]["PGUSER"] == "gradcanary"
        assert node["volumes"] == [f"{name}:/var/lib/postgresql/data"]
        assert 'PGPASSWORD="$$(cat /run/secrets/db_password)" exec docker-entrypoint.sh' in node["entrypoint"][2]
        assert node["secrets"] == gradcanary["secrets"] == tables["secrets"] == ["db_password"]
    said = " ".join(set_up["command"])
    assert "citus_set_coordinator_host('coordinator', 5432)" in said
    assert re.findall(r"citus_add_node\('(\w+)', 5432\)", said) == [*nodes][1:]
    url = "postgresql://gradcanary@coordinator/gradcanary"
    assert tables["command"] == ["migrate", "--citus", "--db", url]
    assert gradcanary["command"] == ["up", "--host", "0.0.0.0", "--db", url]
    waits = {name: each["condition"] for name, each in set_up["depends_on"].items()}
    assert waits == dict.fromkeys(nodes, "service_healthy")
    for service, other in ((tables, "nodes"), (gradcanary, "tables")):
        assert service["depends_on"] == {other: {"condition": "service_completed_successfully"}}
    assert [*compose["volumes"]] == [*nodes]


def test_the_image_has_no_torch_no_root_and_what_a_collector_needs():
    assert {image.split()[0] for image in instructions("FROM")} == {"python:3.11-slim"}
    assert instructions("USER")[-1] == "10001"
    [install] = [line for line in instructions("RUN") if "pip" in line]
    assert "'.[server,dashboard,postgres,notify,mcp]'" in install
    copied = {word for line in instructions("COPY") if not line.startswith("--from") for word in line.split()[:-1]}
    packages = {"agent", "server", "dashboard", "migrations"}
    assert copied == packages | {
        "pyproject.toml",
        "hatch_build.py",
        "README.md",
        "LICENSE",
        "docs/knowledge",
        "docs/runbooks",
    }
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == kept


CONFINED = {"read_only": True, "tmpfs": ["/tmp"], "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
"""Settings of each service that runs the image."""


@pytest.mark.parametrize("name", ["docker-compose.yml", "docker-compose.citus.yml"])
def test_each_service_is_confined(name):
    for service in read_compose(name)["services"].values():
        assert service["security_opt"] == CONFINED["security_opt"]
        if service["image"] == "gradcanary":
            assert {key: service[key] for key in CONFINED} == CONFINED
            assert "privileged" not in service
            assert "user" not in service, "it is the image's, and not root"
    alone = re.sub(r"\\\n *", "", (ROOT / "docs" / "how-to" / "containers.md").read_text("utf-8"))
    words = "--read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges:true gradcanary\n"
    assert re.search(rf"docker run .* {words}", alone)


CONFINE = """
mount --bind "$1" "$1" && mount -t tmpfs tmpfs "$1/tmp"
for point in / /tmp /var/tmp /dev/shm; do ! mountpoint --quiet $point || mount -o remount,bind,ro $point; done
if touch "$0" 2>/dev/null; then exit 9; fi
shift
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""
"""A process as a container has it: only a folder and its temporary files can be written, and no right can be had."""


@pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0,
    reason="this user may not make a mount namespace",
)
def test_a_confined_collector_serves_and_writes_only_its_data(tmp_path):
    data = tmp_path / "data"
    (data / "tmp").mkdir(parents=True)
    confine = ["unshare", "--mount", "sh", "-ec", CONFINE, str(ROOT / "Dockerfile"), str(data)]
    command = [str(Path(sys.executable).with_name("gradcanary")), "up", "--port", "0", "--data", str(data)]
    environment = {**os.environ, "HOME": str(data), "TMPDIR": str(data / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen([*confine, *command], env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            [port] = [line.rsplit(":", 1)[1] for line in lines_until(process.stdout, "listening on")]
            rights = Path(f"/proc/{process.pid}/status").read_text()
            assert set(re.findall(r"^Cap(?:Prm|Eff|Bnd):\t(\w+)$", rights, re.MULTILINE)) == {"0" * 16}
            assert "NoNewPrivs:\t1\n" in rights
            url = f"http://127.0.0.1:{int(port)}"
            assert httpx.get(f"{url}/readyz").status_code == 200
            assert httpx.get(f"{url}/").status_code == 200
            assert httpx.get(f"{url}/api/v1/runs").json()["runs"] == []
        finally:
            process.terminate()
    assert process.returncode == 0
    assert (data / "gradcanary.db").exists()


def lines_until(lines, words):
    """Yield the first line that has the words."""
    yield next(line for line in lines if words in line)


def test_a_password_comes_from_its_own_place(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a b:/@\n")

    def db(given, **environ):
        return Settings.from_env(environ, data=tmp_path, db=given).db

    told = {"GRADCANARY_DB_PASSWORD_FILE": str(secret)}
    assert db("postgresql://ada@db/x", **told) == "postgresql://ada:a b%3A%2F%40@db/x"
    assert db("postgresql://ada:own@db/x") == "postgresql://ada:own@db/x"
    for wrong in ("postgresql://ada:own@db/x", "postgresql://db/x", None):
        with pytest.raises(SettingsError, match="GRADCANARY_DB_PASSWORD is the password of --db"):
            db(wrong, **told)
    with pytest.raises(SettingsError, match="both set"):
        db("postgresql://ada@db/x", GRADCANARY_DB_PASSWORD="x", **told)
