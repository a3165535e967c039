"""rules.yaml: what it moves, and the line of every mistake."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

from gradcanary_server.errors import RulesError
from gradcanary_server.rules.config import LAYER_RULES, NAMES, MetricRule, Rules, rules_from_json, rules_to_json
from gradcanary_server.rules.config_file import load

DOCUMENT = (Path(__file__).parents[4] / "docs" / "reference" / "rules-yaml.md").read_text("utf-8")
EXAMPLE = DOCUMENT.partition("```yaml\n")[2].partition("```\n")[0]


def read(tmp_path, text):
    path = tmp_path / "rules.yaml"
    path.write_text(text, "utf-8")
    return load(path)


def collapse_of(rules, name):
    """Return the rule collapse as it applies to a layer by its name."""
    return rules.section("collapse", rules.entry_of(name))


def test_the_example_loads_and_says_the_defaults(tmp_path):
    rules = read(tmp_path, EXAMPLE)
    assert rules == Rules(
        layers=rules.layers, metrics=(MetricRule("^clip_score$", {"category": ".*"}, below=0.25, falls_by=0.2),)
    )
    assert rules_from_json(rules_to_json(rules)) == rules
    content = yaml.safe_load(EXAMPLE)
    shown = {name: {*content["rules"].get(name, ())} for name in NAMES} | {
        key: {*content[key]} for key in ("grace", "pace")
    }
    assert {name for name in NAMES if name not in content["rules"]} == set(), "not in the example of rules-yaml.md"
    optional = {"enabled", "notify", "norm_below"}
    for name, keys in shown.items():
        assert {each.name for each in fields(getattr(rules, name))} - optional == keys - optional, name
    assert not collapse_of(rules, "blocks.1.k_proj.bias").enabled
    assert collapse_of(rules, "blocks.1.lora_A").evidence == ("threshold",)
    assert collapse_of(rules, "blocks.1.lora_A").enter == 1e-5
    assert collapse_of(rules, "blocks.1.lora_A").exit == pytest.approx(3e-5)  # keeps the ratio
    assert collapse_of(rules, "blocks.1.mlp") == rules.collapse


def test_the_document_names_what_layers_may_have_and_what_not():
    may, may_not = re.search(
        r"about single parameters: (.*?)\. Rules and keys .*? error there,(.*?)\n\n", DOCUMENT, re.DOTALL
    ).groups()
    keys = {key for name in LAYER_RULES for key in getattr(Rules(), name).run_wide}
    assert {*re.findall(r"`(\w+)`", may)} == {*LAYER_RULES}
    assert {*re.findall(r"`(\w+)`", may_not)} == {*NAMES} - {*LAYER_RULES} | keys


def test_layers_have_their_own_numbers_of_every_rule_of_layers(tmp_path):
    text = """version: 1
rules: {explosion: {ratio: 50}, frozen: {enabled: false}}
layers:
- match: expert
  nonfinite: {enabled: false}
  explosion: {observations: 9}
  vanished: {steady_share: 0.5, rare_factor: 30}
  unused: {observations: 500}
  accumulation_loss: {error: 0.5}
  accumulator: {warn_above: 0.5}
  frozen: {enabled: true}
  fp16_underflow: {enabled: false}
  collapse: {norm_below: 1e-6}
"""
    rules = read(tmp_path, text)
    [entry] = rules.layers
    assert rules.entry_of("expert.3") is entry
    assert rules.entry_of("other") is None
    assert entry.explosion == replace(rules.explosion, observations=9)  # ratio falls back to rules
    assert entry.frozen == replace(rules.frozen, enabled=True)
    assert entry.collapse == replace(rules.collapse, norm_below=1e-6)
    assert rules_from_json(rules_to_json(rules)) == rules


def test_rules_without_messages_are_known(tmp_path):
    assert Rules().muted == {"accumulator", "frozen", "second_moments", "fp16_underflow"}
    rules = read(tmp_path, "version: 1\nrules: {unused: {notify: true}, collapse: {notify: false}}\n")
    assert rules.muted == {"collapse", "accumulator", "frozen", "second_moments", "fp16_underflow"}


def test_the_first_entry_that_matches_wins(tmp_path):
    text = "version: 1\nlayers:\n- {match: a, collapse: {enter: 1e-6}}\n- {match: ab, collapse: {enter: 1e-7}}\n"
    assert collapse_of(read(tmp_path, text), "ab").enter == 1e-6


@pytest.mark.parametrize(
    ("body", "line", "says"),
    [
        ("rules:\n  colapse: {}\n", 3, "unknown key 'colapse'"),
        ('layers:\n- match: "\\.bias$"\n', 3, "in single quotes: match: '\\.bias$'"),
        ("grace:\n  steps: 50\n  max: 3\n", 4, "unknown key 'max'"),
        ("rules:\n  collapse:\n    enter: small\n", 4, "a number over 0"),
        ("rules:\n  collapse:\n    enter: true\n", 4, "a number over 0"),
        ("rules:\n  collapse:\n    enter: -1\n", 4, "a number over 0"),
        ("rules:\n  collapse:\n    enter: .nan\n", 4, "a number over 0"),
        ("rules:\n  collapse:\n    exit: .inf\n", 4, "a number over 0"),
        ("rules:\n  collapse:\n    fire_after_steps: 2.5\n", 4, "a whole number over 0"),
        ("rules:\n  collapse:\n    enabled: 1\n", 4, "true or false"),
        ("rules:\n  collapse:\n    evidence: [guess]\n", 4, "threshold"),
        ("rules:\n  collapse:\n    enter: 1e-3\n    exit: 1e-4\n", 5, "at least enter"),
        ("rules:\n  collapse:\n    baseline_observations: 1000000\n", 4, "at most 1000"),
        ("rules:\n  collapse:\n    fall_decades: 1000\n", 4, "at most 60"),
        ("rules:\n  collapse:\n    evidence: [fall, fall]\n", 4, "threshold"),
        ("grace:\n  steps: 5000\n", 3, "at least steps"),
        ("rules:\n  explosion:\n    ratios: 5\n", 4, "unknown key 'ratios'"),
        ("rules:\n  explosion:\n    notify: never\n", 4, "true or false"),
        ("rules:\n  vanished:\n    steady_share: 1.5\n", 4, "at most 1"),
        ("rules:\n  vanished:\n    observations: 101\n", 4, "at most 100"),
        ("rules:\n  accumulation_loss:\n    norm_ratio: 2\n", 4, "at most 1"),
        ("rules:\n  frozen:\n    stopped_share: 1.1\n", 4, "at most 1"),
        ("rules:\n  fp16_underflow:\n    growth: 3\n", 4, "at most 1"),
        ("rules:\n  silent:\n    intervals: 2.5\n", 4, "a whole number over 0"),
        ("rules:\n  stalled:\n    after: 3\n", 4, "unknown key 'after'"),
        ("pace:\n  growth: 1\n", 3, "a number over 1"),
        ("rules: 3\n", 2, "a mapping"),
        ("layers:\n- match: '('\n", 3, "a regular expression"),
        ("layers:\n- collapse: {}\n", 3, "a regular expression"),
        ("layers: {}\n", 2, "a list"),
        ("layers:\n- match: a\n  scale_drop: {}\n", 4, "'scale_drop' is of all layers together"),
        ("layers:\n- match: a\n  collapse:\n    notify: false\n", 5, "'notify' is of all layers together"),
        ("layers:\n- match: a\n  nonfinite: {enabled: true, skipped_in_row: 3}\n", 4, "'skipped_in_row' is of all"),
        ("layers:\n- match: a\n  explosion:\n    loss_ratio: 3\n", 5, "they can have enabled, ratio"),
        ("layers:\n- match: a\n  vanished:\n    steady_share: 2\n", 5, "at most 1"),
        ("layers:\n- match: a\n  clip_before_unscale: {}\n", 4, "is of all layers together"),
        ("layers:\n- match: a\n  grace: {steps: 3}\n", 4, "unknown key 'grace'"),
        ("rules:\n  collapse:\n    norm_below: 0\n", 4, "a number over 0"),
        ("metrics: 3\n", 2, "a list of entries with 'match'"),
        ("metrics:\n- below: 3\n", 3, "match is missing; allowed is a regular expression"),
        ("metrics:\n- match: fid\n", 3, "allowed is an expression beside one of below, above, falls_by, rises_by"),
        ("metrics:\n- match: fid\n  below: low\n", 4, "a number"),
        ("metrics:\n- match: fid\n  below: .inf\n", 4, "a number"),
        ("metrics:\n- match: fid\n  falls_by: 20\n", 4, "a number over 0, at most 1"),
        ("metrics:\n- match: fid\n  below: 3\n  above: 3\n", 5, "over below, 3"),
        ("metrics:\n- match: fid\n  below: 3\n  severity: information\n", 5, "warning or critical"),
        ("metrics:\n- match: fid\n  below: 3\n  observations: 101\n", 5, "at most 100"),
        ("metrics:\n- match: fid\n  below: 3\n  notify: false\n", 5, "unknown key 'notify'"),
        ("metrics:\n- match: fid\n  below: 3\n  tags: cars\n", 5, "a mapping of tags to regular expressions"),
        ("metrics:\n- match: fid\n  below: 3\n  tags:\n    kind: '('\n", 6, "tags.kind is '('; allowed is a regular"),
        ("metrics:\n- match: fid\n  below: 3\n  tags:\n    seed: 1\n", 6, "tags.seed is 1; allowed is a regular"),
        ("grace: {}\ngrace: {}\n", 3, "twice"),
        ("? [a]\n: 1\n", 2, "a key is a word"),
    ],
)
def test_every_mistake_names_its_line(tmp_path, body, line, says):
    with pytest.raises(RulesError, match=rf"line {line}\b") as caught:
        read(tmp_path, "version: 1\n" + body)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["", "version: 2\n", "version: '1'\n", "[", "version: 2020-02-30\n", "version: 1\x00"])
def test_unreadable_files_are_a_rules_error(tmp_path, text):
    with pytest.raises(RulesError):
        read(tmp_path, text)


def test_a_version_that_is_missing_is_said_so(tmp_path):
    with pytest.raises(RulesError, match=r"line 1: version is missing; allowed is 1\."):
        read(tmp_path, "rules: {}\n")


def test_no_file_is_a_rules_error(tmp_path):
    with pytest.raises(RulesError, match="cannot be read"):
        load(tmp_path / "none.yaml")
