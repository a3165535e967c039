"""What the pages of settings ask of the collector; what it answers differently is news."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, quote

from gradcanary_dashboard.collector import incidents as incident_data
from gradcanary_dashboard.collector.client import Answer, Collector
from gradcanary_dashboard.collector.errors import DeniedError
from gradcanary_dashboard.pages.settings import endpoints as endpoint_pages
from gradcanary_dashboard.pages.settings import retention as retention_page
from gradcanary_dashboard.pages.settings import rules as rules_page
from gradcanary_dashboard.pages.settings import run as run_settings_page
from gradcanary_dashboard.pages.settings import silences as silences_page
from gradcanary_dashboard.pages.settings import tokens as tokens_page

Arguments = Mapping[str, str]
Contents = Mapping[str, Any]
Asked = Callable[[Collector, Arguments, str], Mapping[str, Answer]]
Fill = Callable[[Collector, Mapping[str, Any]], Contents]


def asking(asked: Asked, fill: Fill) -> Callable[[Collector, Arguments, str, Mapping[str, Any]], Contents]:
    """Return ``ask`` of a page that shows what some questions are answered."""

    def ask(collector: Collector, arguments: Arguments, chosen: str, shown: Mapping[str, Any]) -> Contents:
        answers = asked(collector, arguments, chosen)
        version = _version(answers)
        if (shown.get("version"), shown.get("chosen")) == (version, chosen):
            return {}
        contents = fill(collector, {name: answer.body for name, answer in answers.items()})
        state = json.dumps({"version": version, "chosen": chosen})
        return {**contents, "shown": state}

    return ask


def may_change(collector: Collector) -> bool:
    """Tell whether the reader may change something: who is shown the tokens may."""
    return allowed(collector, "/tokens") is not None


def allowed(collector: Collector, path: str) -> Answer | None:
    """Return the answer to a question, None for a reader who may not ask it."""
    try:
        return collector.ask(path)
    except DeniedError:
        return None


def _version(answers: Mapping[str, Answer]) -> str:
    return " ".join(answer.version for answer in answers.values())


def _chosen(search: str, key: str) -> str | None:
    """Return what the address names."""
    return next(iter(parse_qs(search.removeprefix("?")).get(key, [])), None)


def _endpoints(collector: Collector, _arguments: Arguments, _chosen: str) -> Mapping[str, Answer]:
    return {"endpoints": collector.ask("/endpoints")}


def _fill_endpoints(collector: Collector, found: Mapping[str, Any]) -> Contents:
    return endpoint_pages.fill(found["endpoints"]["endpoints"], collector.public_url, may=may_change(collector))


def _endpoint(collector: Collector, arguments: Arguments, chosen: str) -> Mapping[str, Answer]:
    path = f"/endpoints/{arguments['endpoint']}"
    log = collector.ask(f"{path}/deliveries", before=_chosen(chosen, "before"))
    return {"endpoint": collector.ask(path), "deliveries": log}


def _fill_endpoint(collector: Collector, found: Mapping[str, Any]) -> Contents:
    return endpoint_pages.fill_one(found["endpoint"], found["deliveries"], may=may_change(collector))


def _silences(collector: Collector, _arguments: Arguments, _chosen: str) -> Mapping[str, Answer]:
    return {"silences": collector.ask("/silences")}


def _fill_silences(collector: Collector, found: Mapping[str, Any]) -> Contents:
    audit = allowed(collector, "/audit")
    records = None if audit is None else audit.body["audit"]
    names = [each["run"] for each in collector.runs().body["runs"]]
    listed, url = found["silences"]["silences"], collector.public_url
    rules, may, reader = incident_data.rules(collector), audit is not None, collector.as_reader
    return silences_page.fill(listed, records, names, rules, url, may=may, is_signed_in=reader)


def _storage(collector: Collector, _arguments: Arguments, _chosen: str) -> Mapping[str, Answer]:
    return {"storage": collector.ask("/storage")}


def _fill_storage(_collector: Collector, found: Mapping[str, Any]) -> Contents:
    return retention_page.fill(found["storage"])


def _run(collector: Collector, arguments: Arguments, _chosen: str) -> Mapping[str, Answer]:
    return {"run": collector.ask(f"/runs/{quote(arguments['run'], safe='')}")}


def _fill_run(collector: Collector, found: Mapping[str, Any]) -> Contents:
    return run_settings_page.fill(found["run"], may=may_change(collector))


def _tokens(collector: Collector, _arguments: Arguments, _chosen: str) -> Mapping[str, Answer]:
    found = allowed(collector, "/tokens")
    return {} if found is None else {"tokens": found}


def _fill_tokens(_collector: Collector, found: Mapping[str, Any]) -> Contents:
    return tokens_page.fill(found["tokens"]["tokens"] if "tokens" in found else None)


def _rules(collector: Collector, _arguments: Arguments, _chosen: str) -> Mapping[str, Answer]:
    return {"rules": collector.ask("/rules")}


def _fill_rules(collector: Collector, found: Mapping[str, Any]) -> Contents:
    return rules_page.fill(found["rules"], may=may_change(collector))


ENDPOINTS = asking(_endpoints, _fill_endpoints)
ENDPOINT = asking(_endpoint, _fill_endpoint)
SILENCES = asking(_silences, _fill_silences)
STORAGE = asking(_storage, _fill_storage)
RUN = asking(_run, _fill_run)
RULES = asking(_rules, _fill_rules)
TOKENS = asking(_tokens, _fill_tokens)
