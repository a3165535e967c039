"""The ways that an option names: the command of each, and errors that show what to write."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary.sanity.ways import Kind, WayError, plan


def commands(kind: Kind, text: str, command: str, effective_batch: int | None = None) -> dict[str, str]:
    """Return the command of each way, as a shell has it."""
    experiment = plan(kind, text, shlex.split(command), effective_batch=effective_batch)
    return {way.name: shlex.join(way.command) for way in experiment.ways}


def test_a_value_stands_where_the_braces_stood() -> None:
    assert commands("compare", "fp32,bf16", "train.py --dtype {precision} --lr 1") == {
        "fp32": "train.py --dtype fp32 --lr 1",
        "bf16": "train.py --dtype bf16 --lr 1",
    }
    assert commands("stress", "lr=3e-3,1e-2", "train.py --lr={lr}") == {
        "3e-3": "train.py --lr=3e-3",
        "1e-2": "train.py --lr=1e-2",
    }
    assert commands("checkpointing", "0,1", "train.py {checkpointing}") == {"0": "train.py 0", "1": "train.py 1"}


def test_arguments_of_a_way_stand_at_the_braces_or_at_the_end() -> None:
    text = "fp32=,bf16=--bf16 --note 'a, b'"
    assert commands("compare", text, "train.py {precision} --lr 1") == {
        "fp32": "train.py --lr 1",
        "bf16": "train.py --bf16 --note 'a, b' --lr 1",
    }
    assert commands("compare", text, "train.py --lr 1")["bf16"] == "train.py --lr 1 --bf16 --note 'a, b'"
    assert commands("compare", "full=no,half=bf16", "train.py --mixed_precision={precision}") == {
        "full": "train.py --mixed_precision=no",
        "half": "train.py --mixed_precision=bf16",
    }


def test_the_effective_batch_is_divided_by_the_micro_steps() -> None:
    command = "train.py --per_device_train_batch_size {batch} --gradient_accumulation_steps {accumulate}"
    assert commands("accumulate", "1,4", command, 64) == {
        "1": "train.py --per_device_train_batch_size 64 --gradient_accumulation_steps 1",
        "4": "train.py --per_device_train_batch_size 16 --gradient_accumulation_steps 4",
    }
    experiment = plan("accumulate", "1,4", ["train.py", "{accumulate}"])
    assert [way.k for way in experiment.ways] == [1, 4]


@pytest.mark.parametrize(
    ("kind", "text", "command", "batch", "told"),
    [
        ("compare", "fp32,bf16", "train.py", None, "--dtype {precision}. Or give the arguments of each way: --compare"),
        ("compare", "fp32,bf16", "train.py", None, "'fp32=,bf16=--bf16,fp16=--fp16'"),
        ("compare", "fp32", "train.py {precision}", None, "two ways or more"),
        ("compare", "fp32,fp32", "train.py {precision}", None, "each once"),
        ("compare", "a=,b='x", "train.py", None, "No closing quotation"),
        ("compare", "a=,b=--x --y", "train.py --p={precision}", None, "as a word of its own"),
        ("checkpointing", "0,1", "train.py", None, "--checkpointing='off=,on=--gradient_checkpointing'"),
        ("stress", "1e-3", "train.py", None, "--stress lr=3e-3,1e-2"),
        ("stress", "lr=", "train.py {lr}", None, "--stress lr=3e-3,1e-2"),
        ("stress", "lr=1", "train.py", None, "train.py --stress ... -- --lr {lr}"),
        ("accumulate", "1,x", "train.py {accumulate}", None, "not a number of micro-steps"),
        ("accumulate", "1,3", "train.py {accumulate} {batch}", 64, "64 cannot be divided by 3"),
        ("accumulate", "1,2", "train.py {accumulate} {batch}", None, "add --effective-batch"),
        ("accumulate", "1,2", "train.py {accumulate}", 64, "write {batch}"),
    ],
)
def test_what_does_not_fit_shows_what_to_write(
    kind: Kind, text: str, command: str, batch: int | None, told: str
) -> None:
    with pytest.raises(WayError) as error:
        commands(kind, text, command, batch)
    assert told in str(error.value)


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=6)
NAMES = st.lists(st.from_regex(r"[A-Za-z0-9_.-]{1,5}", fullmatch=True), min_size=2, max_size=4, unique=True)


@given(names=NAMES, before=st.lists(WORDS), after=st.lists(WORDS))
def test_all_other_arguments_stay_as_they_are(names: list[str], before: list[str], after: list[str]) -> None:
    """Braces of others, as of JSON, are no placeholders."""
    kept = [[word.replace("{precision}", "") for word in words] for words in (before, after)]
    found = plan("compare", ",".join(names), [*kept[0], "{precision}", *kept[1]])
    assert [way.command for way in found.ways] == [(*kept[0], name, *kept[1]) for name in names]


@given(words=st.lists(WORDS.filter(lambda word: "," not in word), max_size=4))
def test_arguments_of_a_way_are_split_as_a_shell_does(words: list[str]) -> None:
    found = plan("compare", f"a=,b={shlex.join(words)}", ["train.py"])
    assert found.ways[1].command == ("train.py", *words)
