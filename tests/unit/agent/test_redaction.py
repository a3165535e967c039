"""Texts of the training without secrets and home folders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary.redaction import HIDDEN, redact

TOKEN = "hf_abcdefghijklmnop1234"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("no route to https://joe:pa55@nas.example/data", f"no route to https://{HIDDEN}@nas.example/data"),
        ("s3://bucket/a?X-Amz-Signature=0af1 is gone", f"s3://bucket/a?{HIDDEN} is gone"),
        ("https://chat.example/hooks/T1/B2 refused", f"https://chat.example/{HIDDEN} refused"),
        (f"401 for {TOKEN}", f"401 for {HIDDEN}"),
        ("Authorization: Bearer abc.def-12345", f"Authorization: Bearer {HIDDEN}"),
        ("api_key='s3cr3tvalue' is wrong", f"api_key='{HIDDEN}' is wrong"),
        ("WANDB_API_KEY=" + "0f" * 20, f"WANDB_API_KEY={HIDDEN}"),
        ("/home/joe/runs/a.pt not found", "~/runs/a.pt not found"),
        ("/Users/joe/a.pt and C:\\Users\\joe\\a.pt", "~/a.pt and ~\\a.pt"),
        ("/data/joe/a.pt", "~/a.pt"),
    ],
)
def test_secrets_and_homes_are_hidden(text: str, redacted: str) -> None:
    assert redact(text, "/data/joe") == redacted


@pytest.mark.parametrize(
    "text",
    [
        "Token indices sequence length is longer (1024 > 512)",
        "pad_token_id: 50256, max_tokens=2048",
        "KeyError: 'token'",
        'Missing key(s) in state_dict: "layers.0.weight".',
        "mat1 and mat2 shapes cannot be multiplied (16x4 and 8x2)",
        "/data/joey/a.pt",
    ],
)
def test_ordinary_messages_stay_as_they_are(text: str) -> None:
    assert redact(text, "/data/joe") == text


@given(st.text(max_size=200), st.text(max_size=200))
def test_token_is_hidden_wherever_it_stands(before: str, after: str) -> None:
    assert TOKEN not in redact(f"{before} {TOKEN} {after}")


def test_long_text_keeps_its_ends() -> None:
    found = redact("first " + "-a" * 100_000 + f" last of {TOKEN}")
    assert found.startswith("first ")
    assert found.endswith(f"last of {HIDDEN}")
    assert len(found) < 5_000
