"""``TrainingConfig``: its keys, its file, and where the optimizer steps."""

import math
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gradcanary import TrainingConfig

POSITIVE = st.floats(0, exclude_min=True, allow_infinity=False)
BOUNDS = st.fixed_dictionaries(
    {"below": st.floats(allow_nan=False, allow_infinity=False)},
    optional={
        "above": st.integers(-9, 9) | st.none(),
        "falls_by": st.floats(0, 1, exclude_min=True),
        "rises_by": POSITIVE,
        "observations": st.integers(1, 100),
        "severity": st.sampled_from(["warning", "critical"]),
    },
).filter(lambda bounds: bounds.get("above") is None or bounds["above"] > bounds["below"])
NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
CONFIGS = st.builds(
    TrainingConfig,
    learning_rate=POSITIVE,
    weight_decay=st.floats(0, allow_infinity=False),
    accumulation_steps=st.integers(1),
    master_weights=st.booleans(),
    mixed_precision=st.sampled_from(["fp16", "bf16", "none"]),
    threshold=st.none() | POSITIVE,
    every=st.sampled_from(["auto", 1, 10, 100, 1000]),
    run=st.none() | st.text(min_size=1).filter(str.strip),
    url=st.none() | st.just("https://collector.example:8787/below"),
    metrics=st.dictionaries(NAMES, BOUNDS, max_size=3),
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gradcanary.yaml"


@given(config=CONFIGS)
def test_a_file_that_was_written_is_read_as_it_was(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("config") / "gradcanary.yaml"
    config.to_yaml(path)
    assert TrainingConfig.from_yaml(path) == config
    plain = yaml.safe_load(path.read_text("utf-8"))  # another program reads the same numbers
    assert plain == {key.name: getattr(config, key.name) for key in fields(config)}


def test_a_threshold_of_null_leaves_it_to_the_collector(path):
    assert TrainingConfig().threshold == 1e-4
    path.write_text("threshold:\n")
    assert TrainingConfig.from_yaml(path).threshold is None


def test_each_key_has_its_comment():
    parts = TrainingConfig().as_yaml().split("\n\n")[1:]
    assert [part.splitlines()[-1].partition(":")[0] for part in parts] == [key.name for key in fields(TrainingConfig)]
    assert all(part.startswith("# ") for part in parts)


def test_a_key_that_a_file_lacks_has_its_default(path):
    path.write_text("run: lora-7\nmetrics:\nurl:\n", "utf-8")
    assert replace(TrainingConfig.from_yaml(path), run=None) == TrainingConfig()


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}"])
def test_a_file_without_any_key_is_refused(path, text):
    path.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=re.escape(f"{path} has no settings: 'gradcanary init {path} --force' writes")):
        TrainingConfig.from_yaml(path)


@pytest.mark.parametrize("written", ["1e-5", "1.0e-5", "0.00001", "'1e-5'"])
def test_a_number_may_be_written_as_yaml_1_1_does_not_know_it(path, written):
    path.write_text(f"learning_rate: {written}\n", "utf-8")
    assert TrainingConfig.from_yaml(path).learning_rate == 1e-5


def test_a_run_may_be_named_by_a_date(path):
    path.write_text("run: 2026-02-30\n", "utf-8")
    assert TrainingConfig.from_yaml(path).run == "2026-02-30"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("learnin_rate: 1", "unknown key 'learnin_rate' (is it learning_rate?); allowed are learning_rate"),
        ("batch: 8", "unknown key 'batch'; allowed are learning_rate"),
        ("learning_rate: 0", "learning_rate is 0: it must be a number above 0"),
        ("learning_rate: .inf", "learning_rate is inf: it must be a number above 0"),
        ("learning_rate: yes", "learning_rate is True: it must be a number above 0"),
        ("learning_rate: [1]", "learning_rate is [1]: it must be a number above 0"),
        ("learning_rate:", "learning_rate is None: it must be a number above 0"),
        ("weight_decay: -1", "weight_decay is -1: it must be a number, 0 or more"),
        ("accumulation_steps: 0", "accumulation_steps is 0: it must be a whole number, 1 or more"),
        ("accumulation_steps: 1.5", "accumulation_steps is 1.5: it must be a whole number, 1 or more"),
        ("accumulator_dtype: fp32", "accumulator_dtype is 'fp32': it must be float32 or bfloat16"),
        ("master_weights: 1", "master_weights is 1: it must be true or false"),
        ("mixed_precision: bf17", "mixed_precision is 'bf17': it must be fp16, bf16 or none"),
        ("mixed_precision: {a: 1}", "mixed_precision is {'a': 1}: it must be fp16, bf16 or none"),
        ("threshold: none", "threshold is 'none': it must be a number above 0, or null"),
        ("every: 7", 'every is 7: it must be "auto" or one of 1, 10, 100, 1000 steps'),
        ("run: 12", "run is 12: it must be a text that is not empty, or null"),
        ("metrics: 3", "metrics is 3: it must be a mapping"),
        ("metrics: {a: {below: 2, above: 1}}", "metrics is {'a': {'below': 2, 'above': 1}}: above of a is 1"),
        ("metrics: {a: {below: low}}", "metrics is {'a': {'below': 'low'}}: below of a is 'low'; it must be"),
        ("metrics: {a: {under: 1}}", "metrics is {'a': {'under': 1}}: a has an unknown key 'under'; known are below"),
        ("metrics: {a: 0.25}", "metrics is {'a': 0.25}: it must name metrics with one of below"),
        ("metrics: {3: {below: 1}}", "the key 3 is not a text; put it in quotes"),
        ("yes: 4", "the key yes is not a text; put it in quotes"),
        ("[a]: b", "the key ['a'] is not a text; put it in quotes"),
        ("every: 0100", "every is 0100, which YAML 1.1 reads in base 8 or 60; write a decimal number, or a text"),
        ("metrics: {a: {above: 1:30}}", "above is 1:30, which YAML 1.1 reads in base 8 or 60; write a decimal"),
        ("learning_rate: 1:30.5", "learning_rate is 1:30.5, which YAML 1.1 reads in base 8 or 60; write a decimal"),
        ("accumulation_steps: 08", "accumulation_steps is '08': it must be a whole number, 1 or more"),
        ("run: a: b", "mapping values are not allowed here; a line is 'key: value', without a space before"),
        ("run: [1]]", "expected <block end>, but found ']'; a line is 'key: value'"),
        ("run: !!python/object:os.system x", "could not determine a constructor for the tag"),
        ("url: ftp://x", "url is 'ftp://x': it must be the address of a collector"),
    ],
)  # fmt: skip
def test_an_error_names_line_key_and_what_is_allowed(path, line, words):
    path.write_text(f"# of a training\n\n{line}\n", "utf-8")
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}, line 3: {words}")):
        TrainingConfig.from_yaml(path)


def test_an_error_of_a_metric_names_its_line(path):
    path.write_text("metrics:\n  loss: {above: 1e3}\n  clip_score:\n    below: true\n", "utf-8")
    with pytest.raises(ValueError, match=re.escape(f"{path}, line 3: metrics is {{'clip_score'")):
        TrainingConfig.from_yaml(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run: " + "[" * 3000, " is not YAML: maximum recursion"),
        ("run: \0", " is not YAML: unacceptable character"),
        ("a: !!int b", " is not YAML: invalid literal"),
        ("run: a\nrun: b\n", ", line 2: the key 'run' is also in line 1; delete one of them"),
        ("metrics:\n  a: {below: 1}\n  a: {below: 2}\n", ", line 3: the key 'a' is also in line 2; delete one"),
    ],
    ids=range(5),
)
def test_a_file_that_is_not_such_yaml_is_named(path, text, words):
    path.write_text(text, "utf-8")
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}{words}")) as error:
        TrainingConfig.from_yaml(path)
    assert "<unicode string>" not in str(error.value)
    assert error.value.__suppress_context__, "a second traceback"


def test_a_file_without_keys_is_named(path):
    path.write_text("hello", "utf-8")
    with pytest.raises(ValueError, match=re.escape(f"{path} is 'hello': it must have lines of 'key: value'")):
        TrainingConfig.from_yaml(path)


def test_a_file_that_is_not_there_says_how_to_get_one(path):
    with pytest.raises(FileNotFoundError, match=r"'gradcanary init .*gradcanary\.yaml' writes one"):
        TrainingConfig.from_yaml(path)


def test_without_pyyaml_it_says_what_to_install(path):
    TrainingConfig().to_yaml(path)
    code = (
        f"import sys; sys.modules['yaml'] = None; import gradcanary; gradcanary.TrainingConfig.from_yaml({str(path)!r})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stderr.splitlines()[-1] == f"ImportError: PyYAML is needed to read {path}: pip install pyyaml"


def test_a_configuration_is_checked_and_frozen():
    with pytest.raises(ValueError, match=r"TrainingConfig\(accumulation_steps=\) is '8': it must be a whole number"):
        TrainingConfig(accumulation_steps="8")
    with pytest.raises(ValueError, match=r"TrainingConfig\(learning_rate=\) is 1000+: it must be a number above 0"):
        TrainingConfig(learning_rate=10**400)
    with pytest.raises(ValueError, match=r"TrainingConfig\(metrics=\) is {3: {'below': 1}}: it must name metrics"):
        TrainingConfig(metrics={3: {"below": 1}})
    with pytest.raises(ValueError, match=r"TrainingConfig\(weight_decay=\) is nan"):
        TrainingConfig(weight_decay=math.nan)
    with pytest.raises(FrozenInstanceError):
        TrainingConfig().learning_rate = 1.0


@pytest.mark.parametrize(
    ("steps", "here"), [(1, "with one micro-step, as here, nothing is summed"), (8, "here 8 micro")]
)
def test_a_bfloat16_accumulator_warns_and_says_why(path, steps, here):
    with pytest.warns(UserWarning, match="loses 0.4 % of the gradient with 8 micro-steps") as w:
        config = TrainingConfig(accumulator_dtype="bfloat16", accumulation_steps=steps)
    assert len(w) == 1
    assert here in str(w[0].message)
    assert w[0].filename == __file__
    config.to_yaml(path)
    with pytest.warns(UserWarning, match="in bfloat16 loses"):
        assert TrainingConfig.from_yaml(path) == config


@given(total=st.integers(0, 30), k=st.integers(1, 7))
def test_the_optimizer_steps_after_k_batches_and_after_the_last(total, k):
    config = TrainingConfig(accumulation_steps=k)
    found = list(config.micro_steps(range(total)))
    assert [batch for batch, _ in found] == list(range(total))
    assert [batch + 1 for batch, is_last in found if is_last] == sorted(
        {*range(k, total + 1, k), *([total] if total else [])}
    )
    endless = [is_last for _, is_last in config.micro_steps(each for each in range(total))]  # of no length
    assert endless == [number % k == 0 for number in range(1, total + 1)]
