"""What batches say beside gradients reaches the words of incidents: the scale of a GradScaler, and who took over."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from gradcanary import wire
from gradcanary_server.incidents import detail
from gradcanary_server.storage.schema import incident
from support import streams
from support.server.archives import LAYERS, RUN


def incidents(store: Any) -> list[detail.IncidentDetail]:
    with store.database.read() as connection:
        ids = connection.scalars(select(incident.c.incident_id).order_by(incident.c.incident_id)).all()
        return detail.load_details(connection, ids)


def send_scaled(store: Any, is_skipped: np.ndarray, size: int) -> None:
    """Send a session whose GradScaler halves its scale from 65,536 on with each step that it skips."""
    absmax = streams.healthy(len(is_skipped), LAYERS)
    absmax[is_skipped, 0] = np.inf
    scales = 65_536 * 0.5 ** np.concatenate([[0], np.cumsum(is_skipped)[:-1]])
    stream = streams.Stream(absmax)
    store.ingest.hello(RUN, "a", wire.dump(stream.hello()))
    for seq, begin in enumerate(range(0, len(absmax), size)):
        rows = slice(begin, begin + size)
        batch = stream.batch(begin, min(begin + size, len(absmax)), change_records=begin == 0)
        series = {"scaler_scale": scales, "skipped_total": np.cumsum(is_skipped)}
        metrics = [
            wire.Metric(name, (), batch.steps, wire.column("d", values[rows].tolist()))
            for name, values in series.items()
        ]
        skipped = tuple(is_skipped[rows].astype(int).tolist())
        store.ingest.batch(
            RUN, "a", seq, wire.dump(replace(batch, skipped=skipped, metrics=(*batch.metrics, *metrics)))
        )


@pytest.mark.parametrize("size", [7, 64])
def test_a_scale_that_fell_is_told_with_its_numbers(archive, size):
    is_skipped = np.zeros(240, np.bool_)
    is_skipped[100::3] = True
    send_scaled(archive, is_skipped, size)
    [found] = incidents(archive)
    assert (found.incident.rule, found.incident.severity, found.cause.code) == ("loss_scale", "warning", "scale_fell")
    # Ten halvings are over at step 128; twenty steps later it has skipped sixteen steps.
    words = "GradScaler's scale fell from 65,536 to 1 between steps 99 and 147"
    assert words in found.summary
    assert "33 % of the steps between them were skipped" in found.summary
    assert words in found.cause.evidence[0]


def test_steps_that_are_skipped_for_ever_have_the_fall_as_evidence(archive):
    is_skipped = np.zeros(160, np.bool_)
    is_skipped[100:] = True
    send_scaled(archive, is_skipped, 64)
    [found] = incidents(archive)
    assert (found.incident.rule, found.cause.code) == ("nonfinite", "scale_fell")
    assert found.cause.evidence[0] == (
        "the GradScaler's scale fell from 65,536 to 0.125 between steps 99 and 119, and 100 % of the steps between "
        "them were skipped"
    )


def test_heads_that_take_turns_hand_over_and_no_message_is_due(archive):
    names = (*streams.layer_names(6), "heads.law.weight", "heads.news.weight")
    absmax = streams.healthy(300, 8)
    absmax[150:, 6], absmax[:150, 7] = np.nan, np.nan
    stream = streams.Stream(absmax, names=names)
    archive.ingest.hello(RUN, "a", wire.dump(stream.hello()))
    for seq, batch in enumerate(stream.batches(16)):
        archive.ingest.batch(RUN, "a", seq, wire.dump(batch))
    found = {each.incident.rule: each for each in incidents(archive)}
    told = found["vanished"]
    assert (told.incident.severity, told.cause.code) == ("information", "handed_over")
    assert told.headline == "1 of 8 parameters handed its gradient over to similar parameters at step 150"
    assert "when similar parameters that had none got theirs" in told.summary
