"""The address of a comparison."""

from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.address.comparison import MOST_RUNS, CompareView, compare_url, parse_compare
from gradcanary_dashboard.address.run import CHOICES, View

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(
    st.lists(names, max_size=MOST_RUNS, unique=True),
    st.none() | names,
    st.none() | st.integers(0, 10**9),
    st.sampled_from(["step", "first"]),
    st.sampled_from(CHOICES["stat"]),
)
def test_an_address_leads_back_to_its_view(
    runs: list[str], text: str | None, first: int | None, align: str, stat: str
) -> None:
    wanted = CompareView(tuple(runs), View(layer=text, rows=text, from_step=first, to_step=first, stat=stat), align)
    assert parse_compare(compare_url(wanted).partition("?")[2]) == wanted


def test_a_bad_address_is_read_as_far_as_it_goes() -> None:
    wanted = parse_compare(
        "?run=a&run=a&run=+&" + "&".join(f"run={letter}" for letter in "bcdefg") + "&align=x&from=9&to=3"
    )
    assert wanted.runs == ("a", "b", "c", "d", "e", "f")
    assert (wanted.repeated, wanted.left_out, wanted.align) == (("a",), ("g",), "step")
    assert wanted.view == View()
