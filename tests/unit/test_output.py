"""What workers print, on its way through the consumer."""

import select

from hypothesis import given, settings
from hypothesis import strategies as st

from unpoison.workers.output import LONGEST, _Pipe, pieces

LINES = st.lists(st.binary(max_size=30).map(lambda text: text.replace(b"\n", b" ") + b"\n"), max_size=40)


@given(LINES, st.binary(max_size=9).filter(lambda text: b"\n" not in text), st.data())
def test_only_whole_lines_are_passed_on_however_they_arrive(lines, begun, data):
    written, pipe, passed_on = b"".join(lines) + begun, _Pipe(-1), b""
    while written:
        size = data.draw(st.integers(1, len(written)))
        part = pipe.lines(written[:size])
        assert not part or part.endswith(b"\n")
        passed_on, written = passed_on + part, written[size:]
    assert passed_on == b"".join(lines)
    assert pipe.begun == begun


def test_a_line_that_never_ends_is_passed_on_in_parts():
    pipe = _Pipe(-1)
    passed_on = b"".join(pipe.lines(b"x" * 65_536) for _ in range(40))
    assert len(passed_on) + len(pipe.begun) == 40 * 65_536
    assert len(pipe.begun) < LONGEST


@settings(max_examples=25)
@given(st.lists(st.integers(0, 10_000).map(lambda size: b"x" * size + b"\n"), max_size=30))
def test_a_pipe_takes_every_piece_in_one_step_unless_a_single_line_is_longer(lines):
    made = list(pieces(b"".join(lines)))
    assert b"".join(made) == b"".join(lines)
    assert all(piece.endswith(b"\n") for piece in made)
    assert all(len(piece) <= select.PIPE_BUF or piece.count(b"\n") == 1 for piece in made)
