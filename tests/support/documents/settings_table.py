"""docs/reference/environment.md, made from the code.

Names, defaults and allowed values come from the code; what a variable is for is written here.
"""

import re
from pathlib import Path

from gradcanary import settings as agent
from gradcanary_server import settings as server
from gradcanary_server.errors import SettingsError

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "reference" / "environment.md"
SOURCES = ("agent", "server", "dashboard", "migrations")

HEAD = """\
# Settings in the environment

Each is read once, when the process starts. An argument of [`watch()`](python-api.md#watch) or an option of
`gradcanary run` comes before its variable. Options of commands: [command line](cli.md). Numbers of the rules:
[rules.yaml](rules-yaml.md). Made from the code by `make generated`.
"""

TRAINING = {
    "url": "address of the collector",
    "run": "name of the run; a resumed job joins its run by this name",
    "token": "access token with the scope `ingest`; commands read it, too",
    "every": "sampling interval",
    "budget": "share of the step time that `auto` may take",
    "include": "regular expression: only parameters whose name it finds",
    "exclude": "regular expression: not the parameters whose name it finds",
    "absmax_below": "a gradient under it is an incident, without other evidence",
    "norm_below": "the same, by the L2 norm",
    "collapse_below": "`enter` of the rule collapse for this launch",
    "step": "number of the next step",
    "crash_message": "whether the message of an exception is sent",
    "environment": "whether command, git commit, host and versions are sent",
    "metrics": "bounds of metrics that `log()` stores, as JSON",
    "stop_on": "severity from which an incident sets `Watch.should_stop`",
}
OTHER_TRAINING = {
    "GRADCANARY_LAUNCH": ("name of the launch, where no launcher gives one", "", "a text"),
    "GRADCANARY_CA_FILE": (
        "certificate of the authority of an https collector; commands and pages read it, too",
        "",
        "a PEM file",
    ),
    "GRADCANARY_SPOOL": (
        "folder for what could not be sent",
        "`$XDG_STATE_HOME/gradcanary/spool`, else `~/.local/state/gradcanary/spool`",
        "a folder",
    ),
    "GRADCANARY_WATCH": ("set to 1 by `gradcanary run`; empty: this process is not watched", "", "1 or empty"),
    "GRADCANARY_STOP_AFTER": ("set by `gradcanary sanity`: the training ends after so many steps", "", "a number"),
}
COLLECTOR = {
    "GRADCANARY_PUBLIC_URL": "address at which people and trainings reach the collector, for links in messages",
    "GRADCANARY_AUTH": "`on` asks for tokens on loopback, too; always on where other machines can connect",
    "GRADCANARY_HOSTS": "names by which the collector may be asked without tokens, beside those of loopback",
    "GRADCANARY_PROXIES": "proxies of which `X-Forwarded-*` is believed",
    "GRADCANARY_EMBED_IN": "pages that may show the collector's pages in a frame",
    "GRADCANARY_DB_PASSWORD": "password of `--db postgresql://USER@HOST/NAME`; also `_FILE`",
    "GRADCANARY_RULES_FILE": "as `--rules`",
    "GRADCANARY_WEBHOOK_FILE": "a `--webhook` in each line",
    "GRADCANARY_WEBHOOK_SECRET": "signs their messages: `whsec_` and base64 of 16 to 128 bytes; also `_FILE`",
    "GRADCANARY_WEBHOOK_NETWORKS": "private networks that endpoints made over HTTP may reach",
    "GRADCANARY_NOTIFY_FILE": "a `--notify` in each line",
    "GRADCANARY_RAW_DAYS": "days for which single samples are kept; without it as long as the run",
    "GRADCANARY_CACHE_MB": "MiB of all caches together",
    "GRADCANARY_LOG": "form of the log",
}
DEFAULTS = {
    "GRADCANARY_PUBLIC_URL": f"`{server.DEFAULT_PUBLIC_URL}`, or the address it listens on",
    "GRADCANARY_CACHE_MB": f"{server.Settings.cache_mb}",
    "GRADCANARY_LOG": server.Settings.log,
    "GRADCANARY_AUTH": "`off` on loopback",
}
WRONG = {"GRADCANARY_PUBLIC_URL": "x", "GRADCANARY_AUTH": "x", "GRADCANARY_PROXIES": "x", "GRADCANARY_EMBED_IN": "x"}
WRONG |= {
    "GRADCANARY_WEBHOOK_NETWORKS": "x",
    "GRADCANARY_RAW_DAYS": "x",
    "GRADCANARY_CACHE_MB": "x",
    "GRADCANARY_LOG": "x",
}


def page() -> str:
    """Return the whole document."""
    training = [_training_row(name) for name in agent.READERS]
    training += [(name, *row) for name, row in OTHER_TRAINING.items()]
    collector = [(name, text, DEFAULTS.get(name, ""), _allowed_by_collector(name)) for name, text in COLLECTOR.items()]
    return f"{HEAD}\n## Trainings and commands\n\n{_table(training)}\n## The collector\n\n{_table(collector)}"


def _training_row(name: str) -> tuple[str, str, str, str]:
    default = agent._DEFAULTS.get(name)
    shown = "" if default in (None, ()) else f"{default:d}" if isinstance(default, bool) else f"{default}"
    return f"GRADCANARY_{name.upper()}", TRAINING[name], shown, _allowed_by_agent(name)


def _allowed_by_agent(name: str) -> str:
    """Return what the reader says of a wrong value."""
    for wrong in ("-1", "(", "é", ""):
        try:
            agent.READERS[name](wrong)
        except (TypeError, ValueError) as error:  # noqa: PERF203 -- of a few
            return re.sub(r"^it must (be|name) |,? and perhaps.*| \(.*\)$", "", str(error).partition(": {")[0])
    raise ValueError(f"{name} takes whatever is given")


def _allowed_by_collector(name: str) -> str:
    if name not in WRONG:
        return "a file" if name.endswith("FILE") else "names with commas" if name.endswith("HOSTS") else "a text"
    try:
        server.Settings.from_env({name: WRONG[name]}, data=Path())
    except SettingsError as error:
        said = str(error).partition(" must be ")[2]
        return re.sub(r" \(.*?\)|; .*", "", said).rstrip(".")
    raise ValueError(f"{name} takes whatever is given")


def named_in_code() -> set[str]:
    """Return all variables that the code names; ``_FILE`` of a secret counts as the secret."""
    texts = (path.read_text("utf-8") for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))
    found = {name for text in texts for name in re.findall(r"\bGRADCANARY_[A-Z]+(?:_[A-Z]+)*", text)}
    return {name.removesuffix("_FILE") if name.removesuffix("_FILE") in COLLECTOR else name for name in found}


def in_table() -> set[str]:
    """Return all variables of the table."""
    return {f"GRADCANARY_{name.upper()}" for name in agent.READERS} | {*OTHER_TRAINING} | {*COLLECTOR}


def _table(rows: list[tuple[str, str, str, str]]) -> str:
    lines = [" | ".join((f"`{name}`", text, default, allowed)) for name, text, default, allowed in rows]
    head = "| variable | is | default | allowed |\n|---|---|---|---|\n"
    return head + "".join(f"| {line} |\n" for line in lines)
