"""Memory planning: values that are live at the same time do not overlap."""

from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.runtime.program import ALIGNMENT, Buffer, plan_arena


@st.composite
def buffers(draw: st.DrawFn) -> Buffer:
    first = draw(st.integers(0, 12))
    return Buffer(draw(st.integers(0, 4096)), first, draw(st.integers(first, 14)))


@given(st.dictionaries(st.text(max_size=3), buffers(), max_size=16))
def test_live_buffers_never_overlap(given: dict[str, Buffer]) -> None:
    arena = plan_arena(given)
    assert all(offset % ALIGNMENT == 0 for offset in arena.offsets.values())
    for name, one in given.items():
        begin, end = arena.offsets[name], arena.offsets[name] + one.size
        assert begin >= 0 and end <= arena.size
        for other, two in given.items():
            if name != other and one.meets(two):
                start = arena.offsets[other]
                assert end <= start or start + two.size <= begin


@given(st.dictionaries(st.text(max_size=3), buffers(), max_size=16))
def test_arena_is_between_the_live_maximum_and_the_sum_of_buffers(given: dict[str, Buffer]) -> None:
    arena = plan_arena(given)
    rounded = {n: -(-b.size // ALIGNMENT) * ALIGNMENT for n, b in given.items()}
    at_once = [sum(rounded[n] for n, b in given.items() if b.first <= step <= b.last) for step in range(15)]
    assert max(at_once) <= arena.size <= arena.separate == sum(rounded.values())


def test_a_chain_needs_its_two_largest_neighbours() -> None:
    chain = {str(n): Buffer(size, n, n + 1) for n, size in enumerate((640, 64, 640, 128, 320))}
    assert plan_arena(chain).size == 640 + 128
    assert plan_arena(chain).separate == 1792


def test_buffer_takes_the_smallest_gap_that_fits() -> None:
    """Two gaps, of 128 and of 64, between buffers that last: what needs 64 takes the smaller one."""
    lasting = {"a": Buffer(640, 0, 9), "b": Buffer(576, 0, 2), "c": Buffer(512, 0, 9), "d": Buffer(448, 0, 1)}
    small = {"e": Buffer(64, 3, 9)}
    arena = plan_arena({**lasting, **small})
    assert arena.size == plan_arena(lasting).size
