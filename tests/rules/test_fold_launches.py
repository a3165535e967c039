"""A run over its launches, and its state over a restart."""

import struct
import zlib
from base64 import b64decode
from dataclasses import replace

import numpy as np
import pytest
from traces import Trace, fired, healthy, launch, lora, run

from gradcanary_server.errors import StoreError
from gradcanary_server.fold import FoldState, fold
from gradcanary_server.rules import Rules

PACKED_BY_VERSION_1 = (
    "eNqNUT1IHFEQ3tPGIgj+FWkEX2NzJ3cXj/PWRlLYCCJpDDnCcq6Pc+O6e9m3e3DIBkVtBIlilyptAoFABC2uuEI0EGwsYiMoiCFVEEy+KUIgs7"
    "dHtEhxM8x73/y8b+YxCe1K07RlMWe75qLQc+mkMN3A8S2nLPRiNpl+nhR2qSY9JfRRhq5SkiGXVTy37EnFzrIoeyVTGm5VekL3vUBGb5RvRNWG"
    "8mVF6KlMKxa7mWwh8gPHXGAn5jVsWZW20J3AtjnCVMXCSKEp+dH8o/xYPpeVqXSOJ1JmyZaG4nrP8msxu1q0KhU535ythQ1lOaaM0mGYaAn/Nl"
    "FMHRv3TdM+P75vL+r9jYPBgUbvWn9jZquvMajFeoEQ57jCGRx8JZfmaAnTfI/TLL3HKhy6xg1X6FTHJj2kH1inVzRFJzgkrU3Z/h5pYiU+4/sO"
    "/8/usu32UNhFF+3D4tl3cEQ/8QczPOUQXeI33uATutBH4a9T1LGHgEI8Qwd9wwY9Rbs9zqhKL2mAua9xi3dwmf8LddMIfcQTzgEf8Joy9IB79t"
    "Akhin6Q6zt9oiW2dlE0d7eTsy34uG//F+UQwKz"
)
"""130 steps of four layers, of which 1 collapsed at step 100 and 3 became suspect at 125."""

PACKED_BY_VERSION_2 = (
    "eNrtUzFoFEEUnRPsRAgxgiB7MI3N3nk5c2xubUIKCwULC0UOWTZ747lkb2fd2QuGcAmBWFloK2KhoKAgpBQR3EJQkLTGQlAIuR+QiKD+X1jo7OaK"
    "iwGTMoUPPn/mvzfv/xmYA8wqMDbHpwLpTXO7VjG5Jzth4octbjeqZuWKyQN3VsSK22N6KZUSaksXxbIVC6V3c1zciDTly9BRYkbEfjLL7VGTX3W9"
    "RPNa3IpdTzhSc9xO4o7IXFXiZH6OSkSk5dV6v7ht3wm9a7lXLg20e8DtallbBtqqUS/Xc1hj1ilr3KpVRalSy2aOnbZUyT8Ubd+LZd5LTzhucuW5"
    "gRgYv6R7qmk/ikQzv0F/7Sg/9ERGd7uFPphGo/TGGQzG3k5ujxwT//P+yI/vHUmfGyMpY+lC8eZwajBDlw32Cbv4EddwFUN8T5KmqI3ndT5Nl+gp"
    "LmJI6/hNK2x6ibfoGH3FJZqnc7SCr4ntEffhFSiwe8uwCRNwEO7CF1iBNXDhMnyAB70lXf0FZ2F4Y7PnQREewR1YhONwEYobbB9hlWboOo3QD1zH"
    "7/gEpX6Fd3SYyrSMFzSH+Axv0ygdos84RGfwBL3AkzRED/En7rVHU8PoYzft712w80S6MBjZRz6a17f+bPMvdaHwB6I2MA0="
)
"""The same of 0 and 1; the gradients of 2 were 2e4 from the first step on, which that version called an explosion."""

PACKED_BY_VERSION_3 = (
    "eNq1lE9IFFEcx8f0YAcTbTOwwBo7RK2y/8ZdN/CHdegSYYeKWnJYx3Gd9s9sM7OSylZIeTGoqIMRBnXwYIcCgzoYjAcrhPQgZAehmZ2dBTt40HhzsK"
    "j3notsUXmx7+Ptztvv78/n9wa2nBkrY5hBNioIYloTu9lwxHfJzXYlZCHOhjmPmxXkTEqTUjHiuD3YS0T7RUVlwwH8KKuqqG7EpRU5pogqPg2yQjSR"
    "5FVNTLNhrxfHiVfTOFSSU7wq9omKpPWz4Savm+2JChpOwNkxJSqIvIxNNqwpGdHNXs4k09iL0I6qxpNepTXpj7+cMymhFx82sPgeSVE1XLu5lQv5S1"
    "X0E5gkQfyWoN8X4Fq8AY+f84SCIexjiEhrcytVMBD0B0NBzic2eTgCo/BJmVT+a0RSEhSZomF+XE4RowTM04znVPHViL/dghqX0mly9Z7NZ16VUoJI"
    "7Gy2rCgGr0jTO750M8z746V750rj6ztGAWbjh58/mSrA7WX3+ORoAU7FvGMzWgF22dyDxY4CzHeFR5bdBbhrtA2tVxbgTOeJ/irbhtqlk+mGaRsWLp"
    "AMG3Awdmw4d5bIhjpq2PCpgybAwzlSKA8XaYM87KON80DLZPPweEbDKXmg0VweDkxnK5yaPJik7YoFT6eGV+tnLRAIzrgFhzB925AFFLPTAgyPO1jQ"
    "S/DrLCBTDa/m4AsZay4HzyaIcpCgRg6aaEIO6DW05eAFCa/PAaGpcEzwkTILJqzVE1ATXpLyIyZk6GAmtNCBTXBqyAQmUJx1AwaqCJEBFHPSgG+VtA"
    "O8IfhxA65VkAwDgIzVaABDZcD4I5e+4+he3Rxw6Q23duvVzMb6jLJoCVloEaXQR0d2upwkOo2/jznnnQnEbIt0419re3qo6D6qdF4hCbPfQ2+dr+g7"
    "6nA+oIOOgda3aY5Fp8+54uzBtW20hv7PHN1Y1UVtFftjC/3hTVwv3a6+Wv3mfpc+f6Ra50Zrdfz/y5TTuBvt+KNdKGbFN/N/As6u7HA="
)
"""115 steps of :func:`two_suspect`, in the middle of a block, of which somebody accepted layer 2."""


def two_suspect() -> Trace:
    absmax = healthy(115, 4)
    absmax[85:, 1] = absmax[107:, 3] = 1e-8
    return Trace(absmax, loss=np.linspace(1, 0.5, 115))


def collapsed() -> FoldState:
    absmax = healthy(300)
    absmax[200:, 4] *= 1e-4
    absmax[295:, 6] *= 1e-4
    absmax[:, 8] = -1
    return run(Trace(absmax))[0]


def test_resume_is_quiet_and_keeps_baselines():
    before, _ = run(Trace(healthy(300)))
    absmax = healthy(300, seed=4)
    absmax[:40] *= 1e-4
    after, changes = run(Trace(absmax, first=150), launch(number=2, first_step=150), state=before)
    assert changes == ()
    assert after.verdict(3).baseline == pytest.approx(before.verdict(3).baseline, rel=0.2)


def test_what_fires_goes_on_in_the_next_launch_and_recovers_there():
    after, changes = run(Trace(healthy(150), first=100), launch(number=2, first_step=100), state=collapsed())
    assert [(c.rule, c.layer, c.kind, c.step) for c in changes] == [
        ("collapse", 4, "resolved", 199),
        ("unused", 8, "resolved", 199),
    ]
    assert after.verdict(4).rules == {}


def test_absent_layers_are_gone_and_their_baselines_wait():
    rest = tuple(each for each in lora() if each.number != 4)
    gone, changes = run(Trace(healthy(5, 15)), launch(rest, number=2), state=collapsed())
    assert [(c.layer, c.kind, c.resolution, c.severity) for c in changes] == [(4, "resolved", "layer_gone", "critical")]
    assert gone.verdict(4).rules == {}
    assert gone.verdict(4).baseline is not None


def test_reshaped_layers_forget():
    other = tuple(replace(each, shape=(16, 128)) if each.number == 4 else each for each in lora())
    state, changes = run(Trace(healthy(5)), launch(other, number=2), state=collapsed())
    assert [(c.layer, c.resolution) for c in changes] == [(4, "layer_gone")]
    assert state.verdict(4).baseline is None
    assert state.verdict(2).baseline is not None


def test_layers_of_a_second_set_of_a_launch_are_known_by_their_shape_too():
    first, _ = run(Trace(healthy(200, 8)), launch(lora(4)))
    grown, _ = run(Trace(healthy(200), first=200), launch(lora(8)), state=first)
    assert grown.verdict(15).baseline is not None
    other = tuple(replace(each, shape=(4, 4)) for each in lora(8))
    assert run(Trace(healthy(1)), launch(other, number=2), state=grown)[0].verdict(15).baseline is None


def test_stragglers_of_an_older_launch_and_replays_are_not_folded():
    first = run(Trace(healthy(100)))[0]
    second = run(Trace(healthy(10)), launch(number=2), state=first)[0]
    for number, trace in ((1, Trace(healthy(50), first=100)), (2, Trace(healthy(10, size=1e-9)))):
        state, changes = run(trace, launch(number=number, newer=frozenset({2} - {number})), state=second)
        assert state.pack() == second.pack()
        assert changes == ()


def test_losses_come_without_samples_where_few_steps_are_sampled():
    none = np.empty((0, 0))
    alone = replace(
        Trace(healthy(0)).samples(), state=none.astype(np.uint8), values={"absmax": none.astype(np.float32)}
    )
    losses = replace(alone, loss_steps=np.arange(1, 4), loss=np.array([0.5, np.nan, 0.25]))
    state, changes = fold(run(Trace(healthy(1)))[0], launch(), losses, Rules())
    assert [(change.step, change.kind) for change in changes] == [(2, "fired")]
    assert state.losses.tolist()[-1] == 0.25


def test_late_losses_are_not_folded():
    state, _ = run(Trace(healthy(100), loss=np.ones(100)))
    late = replace(Trace(healthy(1), first=100).samples(), loss_steps=np.array([40]), loss=np.array([np.nan]))
    assert fold(state, launch(), late, Rules())[1] == ()


def test_all_states_survive_a_restart():
    state = collapsed()
    known = FoldState.unpack(state.pack())
    assert known.pack() == state.pack()
    assert [known.verdict(n) for n in range(17)] == [state.verdict(n) for n in range(17)]
    assert state.verdict(4).rules == {"collapse": "firing"}
    assert state.verdict(6).rules == {"collapse": "suspect"}
    recovering = run(Trace(healthy(30), first=300), state=known)[0]
    assert recovering.verdict(4).rules == {"collapse": "recovering"}
    assert FoldState.unpack(FoldState.empty().pack()).pack() == FoldState.empty().pack()


def test_a_state_that_version_1_packed_is_read():
    state = FoldState.unpack(zlib.decompress(b64decode(PACKED_BY_VERSION_1)))
    assert [state.verdict(layer).rules for layer in range(4)] == [
        {},
        {"collapse": "firing"},
        {},
        {"collapse": "suspect"},
    ]
    _, changes = run(Trace(healthy(250, 4), first=130), launch(lora(2)), state=state)
    assert [(change.rule, change.layer, change.kind, change.step) for change in changes] == [
        ("collapse", 1, "resolved", 229)
    ]
    assert FoldState.unpack(state.pack()).pack() == state.pack()


def test_a_state_that_version_2_packed_is_read_and_what_was_no_rise_resolves():
    state = FoldState.unpack(zlib.decompress(b64decode(PACKED_BY_VERSION_2)))
    assert [state.verdict(layer).rules for layer in range(4)] == [
        {},
        {"collapse": "firing"},
        {"explosion": "firing"},
        {},
    ]
    absmax = healthy(250, 4)
    absmax[:, 2] = 2e4
    _, changes = run(Trace(absmax, first=130), launch(lora(2)), state=state)
    assert {(change.rule, change.layer, change.kind) for change in changes} == {
        ("collapse", 1, "resolved"),
        ("explosion", 2, "resolved"),
    }
    assert FoldState.unpack(state.pack()).pack() == state.pack()


def test_a_state_that_version_3_packed_goes_on_as_if_this_one_had():
    state, mine = (
        FoldState.unpack(zlib.decompress(b64decode(PACKED_BY_VERSION_3))),
        run(two_suspect(), of := launch(lora(2)))[0],
    )
    assert np.flatnonzero(state.accepted).tolist() == [2]
    further = Trace(healthy(250, 4), first=115)
    for one, other in ((state, mine), (run(further, of, state=state)[0], run(further, of, state=mine)[0])):
        assert [one.verdict(n) for n in range(4)] == [other.verdict(n) for n in range(4)]
        assert one.losses.tolist() == other.losses.tolist()
        assert one.progress == other.progress
    assert FoldState.unpack(state.pack()).pack() == state.pack()


@pytest.mark.parametrize("raw", [b"", b"\1", struct.pack("<HI", 99, 0)])
def test_a_state_of_another_version_is_a_clear_error(raw):
    with pytest.raises(StoreError, match="another version"):
        FoldState.unpack(raw)


def test_folding_leaves_the_state_it_was_given():
    state = collapsed()
    packed = state.pack()
    run(Trace(healthy(50, size=1e-8), first=300), state=state)
    fold(state, launch(), Trace(healthy(50, size=1e-8), first=300).samples(), Rules())
    assert state.pack() == packed
    assert fired(()) == {}
