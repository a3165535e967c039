"""The manifests of docs/deploy by the schemas of Kubernetes, and that they fit the image and each other."""

import re

import kubernetes_validate
import pytest
import yaml

from support.deploy import FOLDER

IMAGE = (FOLDER.parents[1] / "Dockerfile").read_text()
STORES = ("sqlite.yaml", "postgresql.yaml")
VERSION = "1.30"
"""The oldest that is looked at; the newest is what the package has."""


def documents(name):
    return list(yaml.safe_load_all((FOLDER / "kubernetes" / name).read_text()))


def one(file, kind, **metadata):
    [found] = [
        each for each in documents(file) if each["kind"] == kind and metadata.items() <= each["metadata"].items()
    ]
    return found


def pod(name):
    kind = "StatefulSet" if name == "sqlite.yaml" else "Deployment"
    return one(name, kind)["spec"]["template"]


@pytest.mark.parametrize("version", [VERSION, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("name", [*STORES, "training.yaml"])
def test_kubernetes_knows_every_field(name, version):
    for document in documents(name):
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("name", STORES)
def test_a_pod_runs_the_image_as_it_is_made(name):
    spec = pod(name)["spec"]
    [container] = spec["containers"]
    port = int(re.search(r"^EXPOSE (\d+)$", IMAGE, re.MULTILINE)[1])
    user = int(re.search(r"^USER (\d+)$", IMAGE, re.MULTILINE)[1])
    assert [each["containerPort"] for each in container["ports"]] == [port]
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (user, True)
    assert container["args"][:3] == ["up", "--host", "0.0.0.0"]
    confined = container["securityContext"]
    assert (confined["readOnlyRootFilesystem"], confined["allowPrivilegeEscalation"]) == (True, False)
    assert confined["capabilities"] == {"drop": ["ALL"]}
    claims = one(name, "StatefulSet")["spec"]["volumeClaimTemplates"] if name == "sqlite.yaml" else []
    volumes = {each["name"] for each in spec["volumes"]} | {each["metadata"]["name"] for each in claims}
    assert {each["name"] for each in container["volumeMounts"]} == volumes
    assert [container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")] == [
        "/healthz",
        "/healthz",
        "/readyz",
    ]
    # A quarter of the memory for the caches (docs/how-to/operating.md).
    assert container["resources"]["limits"] == {"memory": "2Gi"}
    assert {"name": "GRADCANARY_CACHE_MB", "value": "512"} in container["env"]


@pytest.mark.parametrize("name", STORES)
def test_services_and_policies_select_the_pods(name):
    labels = pod(name)["metadata"]["labels"]
    services = [each for each in documents(name) if each["kind"] == "Service"]
    assert [(each["metadata"]["name"], each["spec"]["selector"]) for each in services] == [
        ("gradcanary", labels),
        ("gradcanary-pods", labels),
    ]
    assert one(name, "NetworkPolicy")["spec"]["podSelector"] == {"matchLabels": labels}
    scrape = (FOLDER / "prometheus.yml").read_text()
    assert "names: [gradcanary-pods.gradcanary.svc.cluster.local], type: A, port: 8787" in scrape


def test_two_collectors_share_a_database_and_its_secret():
    spec = one("postgresql.yaml", "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (2, {"type": "Recreate"})
    assert one("postgresql.yaml", "PodDisruptionBudget")["spec"]["minAvailable"] == 1
    [container] = spec["template"]["spec"]["containers"]
    [volume] = [each["secret"] for each in spec["template"]["spec"]["volumes"] if "secret" in each]
    secret = one("postgresql.yaml", "Secret")
    assert (volume["secretName"], oct(volume["defaultMode"])) == (secret["metadata"]["name"], "0o440")
    [mounted] = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "db"]
    [key] = secret["stringData"]
    assert {"name": "GRADCANARY_DB_PASSWORD_FILE", "value": f"{mounted}/{key}"} in container["env"]


def test_a_training_finds_the_collector():
    [container] = one("training.yaml", "Job")["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    for name in STORES:
        service = one(name, "Service", name="gradcanary")
        host = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc.cluster.local"
        assert env["GRADCANARY_URL"] == f"http://{host}:{service['spec']['ports'][0]['port']}"
