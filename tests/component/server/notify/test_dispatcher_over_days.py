"""The dispatcher as shipped and a real receiver, while the store's clock goes through days."""

import itertools
from contextlib import nullcontext

from sqlalchemy import select

from gradcanary_server.rules.config import Pace
from gradcanary_server.storage.schema import endpoint
from support.dialects import one_store
from support.receivers import status
from support.server.clocks import delivering, listen
from support.server.transitions import fired, resolved

HOUR = 3_600.0
PACE = Pace()


def told(receiver):
    return [(message.type.rsplit(".", 1)[1], message.data["counts"]["ever"]) for message in receiver.got]


@one_store
def test_a_receiver_that_was_down_for_three_days_hears_what_is_true_once(new_store, receiver_factory):
    days, receiver = new_store(), receiver_factory(*[status(503)] * 1000)
    listen(days, receiver)
    with delivering(days):
        for hour in range(0, 3 * 24, 2):
            days.record(*[fired(layer) for layer in range(hour)])
            if hour in (6, 20, 50):
                days.record((resolved if hour == 50 else fired)(0, rule="explosion"))
            days.database.wait(2 * HOUR)
        tries = len(receiver.got)
        assert 20 <= tries <= 60
        receiver.answers.clear()
        days.database.wait(5 * HOUR)
        heard = receiver.wait(tries + 1)[tries:]
        days.database.wait(HOUR)
        assert receiver.got[tries:] == heard
    [message] = heard
    assert message.type == "gradient.collapse.opened"
    assert (message.data["state"], message.data["counts"]["ever"]) == ("open", 70)
    assert days.rows(select(endpoint.c.disabled))[0]["disabled"] is None


@one_store
def test_layers_that_trickle_in_for_a_day_are_told_by_doubling(new_store, receiver_factory):
    days, receiver = new_store(), receiver_factory()
    listen(days, receiver)
    with delivering(days):
        for layer in range(0, 300, 12):
            days.record(*[fired(each) for each in range(layer, layer + 12)])
            days.database.wait(24 * HOUR / 26)
    kinds = told(receiver)
    assert [kind for kind, _ in kinds] == ["opened"] + ["grew"] * (len(kinds) - 1)
    assert all(after >= 2 * before for (_, before), (_, after) in itertools.pairwise(kinds))
    assert 4 <= len(kinds) <= 9


def flap(store, receiver, restarting):
    """Let two layers come and go for half a day, and tell of it; ``restarting`` gives the dispatcher of each hour."""
    listen(store, receiver)
    for hour in range(14):
        store.record(*[resolved(layer) if hour % 2 else fired(layer) for layer in range(1 + hour // 5)])
        with restarting():
            store.database.wait(HOUR)
    return [(message.id, message.type, message.data["counts"], message.data["state"]) for message in receiver.got]


@one_store
def test_a_dispatcher_that_begins_anew_each_hour_says_what_one_says_that_never_ends(new_store, receiver_factory):
    store, other = new_store(), new_store()
    anew = flap(store, receiver_factory(), lambda: delivering(store))
    with delivering(other):
        assert flap(other, receiver_factory(), nullcontext) == anew
    assert 4 <= len(anew) <= 9


@one_store
def test_the_end_by_a_changed_rule_is_told_when_the_rule_did_not_find_the_same_again(new_store, receiver_factory):
    days, receiver = new_store(), receiver_factory()
    listen(days, receiver)
    other_rules = [resolved(layer, resolution="rule_changed") for layer in range(2)]
    with delivering(days):
        days.record(fired(0), fired(1))
        days.database.wait(HOUR)
        days.record(*other_rules)
        days.database.wait(HOUR / 2)
        days.record(fired(1))
        days.database.wait(2 * HOUR)
        assert told(receiver) == [("opened", 2)]
        days.record(*other_rules)
        days.database.wait(HOUR / 2)
        assert told(receiver) == [("opened", 2)]
        days.database.wait(HOUR)
        assert told(receiver) == [("opened", 2), ("resolved", 2)]
    assert receiver.got[-1].data["resolution"] == "rule_changed"
