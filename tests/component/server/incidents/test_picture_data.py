"""The picture of an incident from what agents sent: which curves, between which steps, with which baseline."""

import sys

import numpy as np
import pytest

from gradcanary_server.errors import RequestError
from gradcanary_server.incidents import picture, silences
from gradcanary_server.incidents.picture_data import PictureReader
from gradcanary_server.incidents.silences import Silence
from gradcanary_server.rules.config import Rules
from support.streams import Stream, collapsed, falling_loss, healthy

NAMES = tuple(f"base.model.blocks.{number}.lora_A.default.weight" for number in range(12))


@pytest.fixture
def shown(archive, monkeypatch):
    """Return a function that returns what the picture of an incident shows."""
    found = []

    def draw(**options):
        monkeypatch.setattr(picture, "draw", lambda about: found.append(about) or b"")
        PictureReader(archive.database, archive.archive, Rules()).draw(1, **options)
        return found[-1]

    return draw


def send(archive, absmax, **more):
    archive.send("a", Stream(absmax, names=NAMES[: absmax.shape[1]], **more), 50)


def test_the_worst_layers_around_a_collapse(archive, shown):
    send(archive, collapsed(400, 12, range(1, 8), 250), loss=falling_loss(400), lr=1e-3)
    about = shown()
    assert about.title == "run: 7 of 12 parameters collapsed at step 250"
    assert about.subtitle.startswith("critical · certain at step 269 · opened 20")
    assert (about.severity, about.since, about.first, about.last) == ("critical", 250, 150, 369)
    assert (about.legend, about.reference, about.corner) == ("5 worst of 7 parameters", "baseline", "gradcanary #1")
    top, loss, rate = about.panels
    assert [panel.title for panel in about.panels] == [
        "largest absolute value of the gradient", "loss", "learning rate",
    ]  # fmt: skip
    assert (top.is_log, top.threshold, len(top.curves)) == (True, 1e-4, 5)
    values = [curve.values[-101] for curve in top.curves]
    assert values == sorted(values), "the smallest value as it was certain comes first"
    first = top.curves[0]
    assert first.name in {f"blocks.{number}.lora_A" for number in range(1, 8)}, "what all names share is left out"
    assert first.steps.tolist() == list(range(150, 370))
    assert first.values[99] > 3e-4 > 1e-4 > first.values[100]
    assert first.reference == pytest.approx(1e-3, rel=0.5)
    assert " -> " in first.note
    assert loss.curves[0].values[0] > loss.curves[0].values[-1]
    assert set(rate.curves[0].values) == {1e-3}


def test_few_samples_are_looked_for_further_away(archive, shown):
    send(archive, collapsed(80, 4, (0,), 60), every=100, loss=falling_loss(80))
    about = shown()
    assert (about.since, about.first) == (6000, 5000)
    assert len(about.panels[0].curves[0].steps) >= 15
    assert about.last >= 6400


def test_an_incident_of_the_whole_run_has_its_loss_and_rates(archive, shown):
    send(archive, healthy(200, 4), loss=np.where(np.arange(200) < 150, 2.0, np.nan))
    about = shown()
    assert "NaN" in about.title
    assert about.legend == ""
    assert [panel.title for panel in about.panels] == ["loss", "learning rate"]
    loss = about.panels[0].curves[0]
    assert loss.is_nonfinite.tolist() == [False] * 100 + [True] * (len(loss.steps) - 100)


def test_what_is_not_finite_is_marked(archive, shown):
    absmax = healthy(200, 4)
    absmax[120:, 2] = np.inf
    send(archive, absmax)
    [curve] = shown().panels[0].curves
    assert (curve.name, curve.note) == ("blocks.2.lora_A", f"baseline {curve.note.split()[1]}")
    assert curve.steps[curve.is_nonfinite].min() == 120
    assert not np.isfinite(curve.values[curve.is_nonfinite]).any()


def test_a_gradient_that_is_gone_ends(archive, shown):
    absmax = healthy(300, 4)
    absmax[200:, 1] = np.nan
    send(archive, absmax)
    [curve] = shown().panels[0].curves
    assert curve.steps.max() == 199
    assert shown().last > 220


def test_a_message_shows_no_silenced_layer(archive, shown):
    send(archive, collapsed(400, 12, range(1, 4), 250))
    with archive.database.write() as connection:
        now = archive.database.now(connection)
        hidden = Silence(0, "*", None, r"blocks\.[12]\.", now, now + 60, "ada", "")
        silences.create_silence(connection, hidden)
    assert [curve.name for curve in shown(hides_silenced=True).panels[0].curves] == ["blocks.3.lora_A"]
    assert " 1 of 12 " in shown(hides_silenced=True).title
    assert len(shown().panels[0].curves) == 3


def test_an_unknown_incident_is_404(archive):
    with pytest.raises(RequestError) as refused:
        PictureReader(archive.database, archive.archive, Rules()).draw(9)
    assert refused.value.status == 404


def test_without_pillow_nothing_is_read(archive, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(RequestError, match="Pillow"):
        PictureReader(None, archive.archive, Rules()).draw(1)
