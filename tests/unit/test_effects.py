"""Is what handlers did written down whatever they do to their process?"""

import os

from unpoison.testing.processes import Child, Effects


def test_a_handler_that_closes_its_output_gets_no_output_of_others_into_the_lines(tmp_path):
    effects = Effects(tmp_path)

    def close_output_and_go_on():
        effects.add("before")
        os.close(1)
        effects._opened()  # as `add` does, between whose steps another thread may print
        os.write(1, b"printed\n")

    with Child(close_output_and_go_on) as child:
        assert child.wait() == 1, "descriptor 1 is a file again"
    assert effects.lines() == ["before"]


def test_lines_are_written_after_a_handler_closed_every_descriptor(tmp_path):
    effects = Effects(tmp_path)

    def close_everything():
        effects.add("before")
        os.closerange(3, 100)
        stranger = os.open(tmp_path / "stranger", os.O_WRONLY | os.O_CREAT)
        os.dup2(stranger, effects._descriptor)  # another file has the number that the lines had
        effects.add("after")

    with Child(close_everything) as child:
        assert child.wait() == 0
    assert effects.lines() == ["before", "after"]
    assert (tmp_path / "stranger").read_bytes() == b""


def test_lines_written_after_a_clearing_are_kept(tmp_path):
    effects = Effects(tmp_path)
    effects.add("old")
    effects.clear()
    effects.add("new")
    assert effects.lines() == ["new"]
