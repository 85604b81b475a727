from unpoison.cli.demo.plain_loop import Spool, order_of
from unpoison.cli.demo.shop import VARIABLE, Tail, entry_of, record, starts_of


def test_what_is_written_down_is_read_back(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "ledger"))
    tail = Tail(tmp_path / "ledger")
    assert tail.lines() == []
    record("start", 7)
    record("start", 8)
    assert [entry_of(line)[1:] for line in tail.lines()] == [("start", 7), ("start", 8)]
    record("done", 7)
    assert [entry_of(line)[1:] for line in tail.lines()] == [("done", 7)]
    assert tail.lines() == []
    assert len(starts_of(7)) == 1


def test_half_a_line_is_read_once_it_is_whole(tmp_path):
    path = tmp_path / "log"
    path.write_text("one\ntw")
    tail = Tail(path)
    assert tail.lines() == ["one"]
    with path.open("a") as file:
        file.write("o\n")
    assert tail.lines() == ["two"]


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    record("start", 7)
    assert starts_of(7) == []
    assert list(tmp_path.iterdir()) == []


def test_the_spool_keeps_its_order_and_what_is_put_back_goes_to_the_end(tmp_path):
    spool = Spool(tmp_path / "spool")
    spool.fill([b"a", b"b", b"c"])
    first = spool.waiting()[0]
    assert (order_of(first), first.read_bytes()) == (1, b"a")
    spool.put_back(first, 4)
    assert [order_of(file) for file in spool.waiting()] == [2, 3, 1]
