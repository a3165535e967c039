"""A collector that comes back with other rules: no message of what they find again, and all else stays."""

import numpy as np

from support.dialects import one_store
from support.receivers import SECRET
from support.streams import Session, Stream, collapsed

LAYERS, AT, STEPS = 24, 130, 200
PACE = "version: 1\npace: {wait_s: 0.5, interval_s: 0.5}\n"
OFF_IN_BLOCK_0 = "layers:\n- match: 'blocks\\.0\\.'\n  collapse: {enabled: false}\n"
OFF = "rules: {collapse: {enabled: false}}\n"
LATER = "rules: {collapse: {fire_after_steps: 30}}\n"


def states(collector):
    return {each["rule"]: (each["state"], each["resolution"]) for each in incidents(collector).values()}


def incidents(collector):
    return {each["rule"]: each for each in collector.get("/api/v1/incidents").json()["incidents"]}


def versions(collector):
    rules, run = (collector.get(f"/api/v1/{each}").json() for each in ("rules", "runs/run-1"))
    return rules["rules_version"], run["rules_version"], run["revision"]


@one_store
def test_a_changed_rule_says_nothing_of_what_it_finds_again(collector_factory, receiver_factory, tmp_path):
    rules, receiver = tmp_path / "rules.yaml", receiver_factory()
    rules.write_text(PACE)
    collector = collector_factory(
        "--webhook", receiver.url, "--rules", str(rules), env={"GRADCANARY_WEBHOOK_SECRET": SECRET}
    )

    def restart(text):
        collector.stop()
        rules.write_text(PACE + text)
        collector.start()

    def send(seq, begin, end):
        Session(collector.url).post_batch(seq, stream.batch(begin, end, change_records=seq == 0)).raise_for_status()

    def members():
        return collector.get(f"/api/v1/incidents/{number}").json()["layers"]

    absmax = collapsed(500, LAYERS, range(4), AT)
    absmax[AT:300, 9] = np.nan
    stream = Stream(absmax)
    Session(collector.url).put_hello(stream.hello()).raise_for_status()
    for seq, begin in enumerate(range(0, STEPS, 50)):
        send(seq, begin, begin + 50)
    receiver.wait(2)
    number = incidents(collector)["collapse"]["id"]
    before, was = versions(collector), members()
    assert before[:2] == (1, 1)

    restart("")
    assert versions(collector) == before
    assert states(collector) == {"collapse": ("open", None), "vanished": ("open", None)}

    restart(OFF_IN_BLOCK_0)
    assert versions(collector)[:2] == (2, 2)
    assert states(collector) == {"collapse": ("resolved", "rule_changed"), "vanished": ("open", None)}
    assert incidents(collector)["collapse"]["summary"].endswith(" Over at step 199: the rule is another one now.")
    assert collector.get("/api/v1/runs/run-1").json()["firing"] == {"vanished": 1}
    send(4, 200, 250)
    again = collector.get(f"/api/v1/incidents/{number}").json()
    assert (again["state"], again["reopened"], again["counts"]["firing"]) == ("open", 0, 2)
    assert [(each["layer"], each["until_step"]) for each in members()] == [(0, 199), (1, 199), (2, None), (3, None)]

    restart(LATER)
    assert versions(collector)[:2] == (3, 3)
    assert states(collector) == {"collapse": ("resolved", "rule_changed"), "vanished": ("open", None)}
    send(5, 250, 300)
    again = collector.get(f"/api/v1/incidents/{number}").json()
    assert (again["state"], again["reopened"], again["counts"]["firing"]) == ("open", 0, 4)
    assert [each["since_step"] for each in members()] == [250] * 4
    assert [each["baseline"] for each in members()] == [each["baseline"] for each in was]

    restart(OFF)
    send(6, 300, 500)
    assert states(collector) == {"collapse": ("resolved", "rule_changed"), "vanished": ("resolved", "recovered")}
    receiver.wait(3)
    told = [(each["type"], each["data"]["resolution"]) for each in receiver.verified(SECRET)]
    assert sorted(told[:2]) == [("gradient.collapse.opened", None), ("gradient.vanished.opened", None)]
    assert told[2:] == [("gradient.vanished.resolved", "recovered")], "the end of collapse is told in an hour"


@one_store
def test_runs_that_nobody_heard_of_again_are_judged_anew_when_they_send(collector_factory, tmp_path):
    """Without an open incident nothing is done at the start: counts that do not fire yet are taken back then."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(PACE)
    collector = collector_factory("--rules", str(rules))
    stream, session = Stream(collapsed(300, LAYERS, range(4), AT)), Session(collector.url)
    session.put_hello(stream.hello()).raise_for_status()
    session.post_batch(0, stream.batch(0, AT + 15, change_records=True)).raise_for_status()
    collector.stop()
    rules.write_text(PACE + LATER)
    collector.start()
    assert versions(collector)[:2] == (2, 1)
    Session(collector.url).post_batch(1, stream.batch(AT + 15, 300)).raise_for_status()
    assert versions(collector)[:2] == (2, 2)
    assert incidents(collector)["collapse"]["opened_step"] == AT + 15 + 29
