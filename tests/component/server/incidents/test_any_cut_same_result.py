"""Whatever is cut, sent twice, replayed or restarted: the same incidents, from what agents send to the tables."""

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from gradcanary import wire
from gradcanary_server.incidents import text
from gradcanary_server.ingest.service import Ingest
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.layers import LayerSetCache
from gradcanary_server.storage.schema import incident, incident_layer, is_of_incident, rule_state, run
from gradcanary_server.tsdb.log import BatchLog
from gradcanary_server.tsdb.reader import Reader
from gradcanary_server.tsdb.tiles import TileStore
from support.server.wired import batches, greeting
from support.strategies import LAYERS, QUICK, launches, traces
from support.traces import Trace, healthy, launch, lora

TIMES = ("opened", "resolved", "reopened_at", "acked")
NUMBERS = ("incident_id", "run_id", "revision", *TIMES)
"""Each batch that changes an incident is a revision of it."""


class Collector:
    """Takes what agents send, without HTTP."""

    def __init__(self, url):
        self.database = Database(url)
        self.database.migrate()
        self.runs = 0
        self.restart()

    def restart(self):
        """Remember nothing but what is stored, as a new process does."""
        sets = LayerSetCache()
        self.ingest = Ingest(self.database, QUICK, sets, Reader(BatchLog(sets), TileStore()), "http://here")

    def told(self, name):
        """Return the incidents of a run as people and pages see them, without times, and what its rules remember."""
        number = select(run.c.run_id).where(run.c.name == name).scalar_subquery()
        mine = incident.c.run_id == number
        is_member = is_of_incident(incident_layer, incident.c.run_id, incident.c.incident_id)
        members = select(incident_layer).join(incident, is_member)
        with self.database.read() as connection:
            rows = connection.execute(select(incident).where(mine).order_by(incident.c.incident_id)).mappings().all()
            rows = [{**row, "summary": text.current_summary(connection, row)} for row in rows]
            layers = connection.execute(members.where(mine)).mappings().all()
            packed = connection.execute(
                select(rule_state.c.packed).where(rule_state.c.run_id == number).order_by(rule_state.c.part)
            ).all()
        ids = [row["incident_id"] for row in rows]
        rows = [{**row, "beside": row["beside"] and ids.index(row["beside"])} for row in rows]
        found = [{key: row[key] for key in row if key not in NUMBERS} for row in rows]
        joined = [
            (ids.index(row["incident_id"]), {key: row[key] for key in row if key not in NUMBERS}) for row in layers
        ]
        return found, sorted(joined, key=lambda entry: (entry[0], entry[1]["layer_no"])), packed


@pytest.fixture(scope="module")
def collector(new_store_url):
    made = Collector(new_store_url())
    yield made
    made.database.close()


@st.composite
def lives(draw):
    """One to three launches of a run: its hello, its trace, and how it ended; None = killed."""
    found, begin = [], 0
    for number in range(1, draw(st.integers(1, 3)) + 1):
        trace = draw(traces())
        trace = replace(trace, first=-(-begin // trace.every) * trace.every)
        of = replace(draw(launches), number=number, first_step=trace.first)
        found.append((of, trace, draw(st.sampled_from(["finished", "crashed", None]))))
        begin = max(0, trace.first + trace.every * len(trace.absmax) - draw(st.integers(0, 20)))
    return found


def send(collector, name, life, cuts=((), (), ()), chaos=None):
    """Send a life; ``chaos`` yields before each batch how many batches of the launch are sent again, and restarts."""
    for (of, trace, end), places in zip(life, cuts, strict=False):
        session, bodies = f"s{of.number}", list(batches(trace, of, places))
        collector.ingest.hello(name, session, greeting(of, started=float(of.number)))
        for seq, body in enumerate(bodies):
            if chaos is not None:
                again = chaos()
                for earlier in range(max(0, seq - again), seq):
                    assert collector.ingest.batch(name, session, earlier, bodies[earlier]).status == "duplicate"
                if again == 1:
                    collector.restart()
                    collector.ingest.hello(name, session, greeting(of, started=float(of.number)))
            assert collector.ingest.batch(name, session, seq, body).status == "stored"
        if end is not None:
            collector.ingest.end(name, session, wire.dump(wire.End(end, None, None)))


cuttings = st.lists(st.lists(st.integers(0, 125), max_size=5).map(tuple), min_size=3, max_size=3)


@settings(max_examples=4, phases=[Phase.reuse, Phase.generate])
@given(lives(), cuttings, st.data())
def test_the_same_incidents_however_a_stream_is_cut_repeated_and_restarted(collector, life, cuts, data):
    assert len(life[0][0].layers) == LAYERS
    collector.runs += 1
    whole, cut = f"{collector.runs}-whole", f"{collector.runs}-cut"
    send(collector, whole, life)
    send(collector, cut, life, cuts, lambda: data.draw(st.integers(0, 2)))
    before = collector.told(cut)
    assert before == collector.told(whole)
    for of, trace, _ in life:
        for seq, body in enumerate(batches(trace, of, cuts[of.number - 1])):
            assert collector.ingest.batch(cut, f"s{of.number}", seq, body).status == "duplicate"
    assert collector.told(cut) == before


@pytest.mark.parametrize("recovers", [18, 19, 20, 21, 100])
def test_a_resumed_run_that_recovers_late_reopens_or_not_however_it_is_cut(collector, recovers):
    """What a launch of 20 steps has shown no sign of recovery of opens again: seen from one batch as from many."""
    of, absmax = launch(lora(LAYERS // 2)), healthy(360, LAYERS)
    absmax[40:, 1] *= 1e-4
    absmax[60 + recovers :, 1] *= 1e4
    ends = Trace(absmax[:60]), Trace(absmax[60:], first=60)
    life = [
        (replace(of, number=number, first_step=trace.first), trace, end)
        for number, trace, end in zip((1, 2), ends, ("finished", None), strict=True)
    ]
    found = []
    for name, cuts in {"whole": (), "cut": (10, 19, 20, 21, 25, 100), "fine": tuple(range(10, 36))}.items():
        send(collector, f"{recovers}-{name}", life, ((), cuts))
        found.append(collector.told(f"{recovers}-{name}"))
    assert found[0] == found[1] == found[2]
    assert [row["reopened"] for row in found[0][0]] == [int(recovers >= 20)]
