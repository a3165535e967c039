"""How often trainings are asked to send, by what a collector has to do; and that a collector asks for it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from gradcanary import wire
from gradcanary_server.app import create_app
from gradcanary_server.ingest.admission import IDLE, OWN_INTERVAL_S, SEND_INTERVALS_S, WINDOW_S, Backpressure
from gradcanary_server.settings import Settings
from support import streams


class Team:
    """Trainings that send as they are asked to, and a collector's clocks; ``sent``: how many do in each half second."""

    def __init__(self, trainings, each_ms, others=0.0, **machine):
        self.each_s, self.others = each_ms / 1e3, others
        self.now = self.used = 0.0
        self.due = [0.0] * trainings
        self.sent = []
        self.backpressure = Backpressure(lambda: self.now, lambda: self.used, **machine)

    def share(self):
        """Of one core, by what is asked for now."""
        return self.others + len(self.due) * self.each_s / max(self.backpressure.interval_s(), OWN_INTERVAL_S)

    def run(self, windows):
        """Return what was asked for, window by window."""
        asked = []
        for _ in range(windows):
            begun = self.now
            while self.now - begun <= WINDOW_S:
                self.now += OWN_INTERVAL_S
                self.used += OWN_INTERVAL_S * self.others
                turn = [number for number, due in enumerate(self.due) if due <= self.now]
                for number in turn:
                    self.used += self.each_s
                    self.due[number] = self.now + max(self.backpressure.next_interval_s(), OWN_INTERVAL_S)
                self.sent.append(len(turn))
            asked.append(self.backpressure.interval_s())
        return asked


def test_a_team_that_keeps_a_collector_busy_is_asked_for_fewer_batches_until_it_does_not():
    assert Team(50, 4.0).run(3) == [0.0] * 3
    assert Team(100, 5.0).run(4) == [1.0] * 4
    assert Team(200, 5.0).run(4) == [1.0, 2.0, 2.0, 2.0]
    assert Team(200, 9.0).run(5) == [1.0, 2.0, 4.0, 4.0, 4.0]


@pytest.mark.parametrize(("trainings", "each_ms", "asked"), [(100, 5.0, 1.0), (200, 5.0, 2.0), (200, 9.0, 4.0)])
def test_send_intervals_are_spread(trainings, each_ms, asked):
    team = Team(trainings, each_ms)
    assert team.run(6)[-1] == asked
    assert set(team.sent[-8:]) == {trainings * OWN_INTERVAL_S / asked}


def test_few_trainings_are_not_slowed_down():
    assert Team(10, 1.0, others=0.95).run(3) == [0.0] * 3
    assert Team(30, 1.0, others=0.95).run(2) == [1.0, 2.0]


def test_remaining_trainings_get_short_intervals_again():
    team = Team(200, 5.0)
    assert team.run(2) == [1.0, 2.0]
    team.due = team.due[:70]
    assert team.run(4)[1:] == [1.0, 1.0, 1.0], "twice as many would be busy again"
    team.due = team.due[:20]
    assert team.run(3)[1:] == [0.0, 0.0]


def test_workers_that_share_cores_are_busy_with_their_part_of_them():
    assert Team(25, 7.0, workers=4, cores=4).run(2) == [0.0, 0.0]
    assert Team(25, 7.0, workers=4, cores=2).run(2)[0] == 1.0
    assert Team(4, 7.0, others=0.5, workers=4, cores=2).run(2) == [0.0, 0.0], "16 of all four cannot keep them busy"


@given(st.integers(1, 400), st.floats(0.1, 20), st.floats(0, 0.6))
@example(141, 2.49, 0.0)
def test_back_pressure_settles(trainings, each_ms, others):
    team = Team(trainings, each_ms, others)
    *_, before, last = team.run(6)
    assert before == last
    assert last == 0.0 or team.share() >= IDLE
    assert last in SEND_INTERVALS_S


def test_back_pressure_ends_without_trainings():
    team = Team(200, 5.0)
    assert team.run(2) == [1.0, 2.0]
    said = []
    for _ in range(3):
        team.now += WINDOW_S
        said.append(team.backpressure.interval_s())
    assert said == [1.0, 0.0, 0.0]


def test_the_answer_to_a_batch_asks_for_it_and_operators_see_it(new_store_url, tmp_path):
    app, now = create_app(Settings(tmp_path, new_store_url())), [0.0]
    app.state.services.ingest.backpressure = Backpressure(lambda: now[0], lambda: now[0] * 0.9)
    stream, session = streams.Stream(streams.healthy(300, 4)), "/api/v1/runs/sdxl/sessions/s"
    with TestClient(app, base_url="http://localhost", headers={"content-type": "application/json"}) as client:
        asked = [client.put(session, content=wire.dump(stream.hello())).json()["spacing_s"]]
        for step in range(300):
            now[0] += 0.02  # as often as 25 trainings do
            body = wire.dump(stream.batch(step, step + 1, change_records=step == 0))
            asked.append(client.post(f"{session}/batches/{step}", content=body).json()["spacing_s"])
        assert sorted(set(asked)) == [0.0, 1.0]
        assert "gradcanary_ingest_spacing_seconds 1.0" in client.get("/metrics").text
        now[0] += WINDOW_S
        assert "gradcanary_ingest_spacing_seconds 0.0" in client.get("/metrics").text, "they are gone"
