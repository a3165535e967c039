"""Settings of parameter groups as they are sent: the first values, and changes that matter."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary import wire
from gradcanary.export.settings_log import MAX_CHANGES, MAX_ENTRIES, SettingsLog
from gradcanary.tracking.group_settings import GroupChange

VALUES = st.none() | st.booleans() | st.floats() | st.text(max_size=5)
GROUPS = st.lists(st.dictionaries(st.sampled_from("abc"), VALUES.filter(lambda each: each is not None)), max_size=4)


def change(step: int, *groups: dict[str, object]) -> GroupChange:
    return GroupChange(step, step - 1 if step else None, groups)


def logged(*changes: GroupChange) -> tuple[wire.Setting, ...]:
    log = SettingsLog()
    for each in changes:
        log.add(each)
    return log.entries


def test_groups_with_the_same_value_share_an_entry() -> None:
    entries = logged(change(0, {"weight_decay": 0.1}, {"weight_decay": 0}, {"weight_decay": 0.1}))
    assert entries == (
        wire.Setting(0, None, (0, 2), "weight_decay", 0.1),
        wire.Setting(0, None, (1,), "weight_decay", 0.0),
    )


def test_groups_that_had_other_values_do_not_share_a_change() -> None:
    first, second = change(0, {"a": 1.0}, {"a": 2.0}), change(7, {"a": 9.0}, {"a": 9.0})
    assert logged(first, second)[2:] == (
        wire.Setting(7, 6, (0,), "a", 9.0),
        wire.Setting(7, 6, (1,), "a", 9.0),
    )


@pytest.mark.parametrize(
    ("before", "after", "is_logged"),
    [
        (0.0, 1e-9, True),
        (0.1, 0.105, False),
        (0.1, 0.111, True),
        (0.99, 0.999, True),
        (0.9, 0.905, False),
        (False, True, True),
        (1e-8, 1e-7, True),
        (0.9, float("nan"), True),
    ],
)
def test_change_is_logged_if_it_matters(before, after, is_logged) -> None:
    assert len(logged(change(0, {"x": before}), change(1, {"x": after}))) == 1 + is_logged


def test_small_changes_add_up() -> None:
    ramp = [change(step, {"beta1": 0.85 + 0.0005 * step}) for step in range(201)]
    entries = logged(*ramp)
    assert 5 < len(entries) < 40
    assert all(later.checked == later.step - 1 for later in entries[1:])


def test_restless_setting_ends_and_leaves_room_for_others() -> None:
    entries = logged(*(change(step, {"x": float(step % 2), "y": 1.0 + (step > 500)}) for step in range(1000)))
    assert len([each for each in entries if each.name == "x"]) == 1 + MAX_CHANGES
    assert [each.step for each in entries if each.name == "y"] == [0, 501]


@given(st.lists(GROUPS, max_size=6))
def test_every_log_can_be_sent(steps) -> None:
    entries = logged(*(change(step, *groups) for step, groups in enumerate(steps)))
    assert len(entries) <= MAX_ENTRIES
    assert wire.dump(entries)


@given(GROUPS)
def test_log_has_the_last_values(groups) -> None:
    entries = logged(change(0, *groups))
    for number, group in enumerate(groups):
        found = {each.name: each.value for each in entries if number in each.groups}
        assert found.keys() == group.keys()


def test_clip_belongs_to_no_group() -> None:
    log = SettingsLog()
    log.add_clip(20, None, 1.0)
    log.add_clip(90, 89, 1e-9)
    first = wire.Setting(20, None, (), "max_norm", 1.0)
    assert log.entries == (first, replace(first, step=90, checked=89, value=1e-9))
