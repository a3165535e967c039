"""Heatmaps of which a page has the beginning: what is sent, and what it makes of that."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gradcanary_dashboard.analysis.arrays import encode, read
from gradcanary_dashboard.routes.refresh import KEPT_PICTURES, Pictures, is_heatmap


def figure(cells):
    return {"data": [{"type": "heatmap", "z": encode(cells), "zmin": 1}], "layout": {"meta": {}}}


def cells_of(shortened, known):
    """What a page makes of it: as gradcanary.js does."""
    z = shortened["data"][0]["z"]
    rows, columns = map(int, z["shape"].split(","))
    added = read({**z, "shape": f"{rows}, {columns - z['kept']}"})
    return np.concatenate([known[:, : z["kept"]], added], axis=1)


pictures = arrays.arrays(np.int16, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=st.integers(-2, 2))


@given(pictures, pictures)
def test_a_page_sees_the_same_whatever_it_had(before, now):
    kept = Pictures()
    assert kept.shortened(figure(before), None, "before") is None
    shortened = kept.shortened(figure(now), "before", "now")
    if shortened is not None:
        assert (cells_of(shortened, before) == now).all()
        assert shortened["data"][0]["zmin"] == 1
    again = kept.shortened(figure(now), "now", "again")
    assert again is not None
    assert again["data"][0]["z"]["kept"] == now.shape[1]


def test_new_columns_are_all_that_is_sent_of_a_picture_that_grew():
    cells = np.arange(40, dtype=np.int16).reshape(4, 10)
    kept = Pictures()
    kept.shortened(figure(cells[:, :8]), None, "a")
    z = kept.shortened(figure(cells), "a", "b")["data"][0]["z"]
    assert (z["kept"], z["shape"]) == (8, "4, 10")
    assert (read({**z, "shape": "4, 2"}) == cells[:, 8:]).all()


def test_forgotten_heatmap_is_sent_as_a_whole():
    cells = np.zeros((2, 3), np.int16)
    kept = Pictures()
    kept.shortened(figure(cells), None, "first")
    for number in range(KEPT_PICTURES):
        kept.shortened(figure(cells), None, str(number))
    assert kept.shortened(figure(cells), "first", "x") is None
    assert kept.shortened(figure(cells + 1), "x", "y") is None, "all of it is new"


def test_only_heatmaps_with_cells_are_pictures():
    assert is_heatmap(figure(np.zeros((1, 1), np.int16)))
    for other in (None, "text", [], {}, {"data": []}, {"data": [{"type": "scatter", "y": []}]}):
        assert not is_heatmap(other)
