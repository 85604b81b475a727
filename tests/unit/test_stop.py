from unpoison.flow.ending import Stop


def test_asking_again_shortens_the_grace_and_never_lengthens_it():
    now = [100.0]
    stop = Stop(lambda: now[0])
    stop.ask(30)
    now[0] += 20
    stop.ask(30)  # as a run does when one of its sources breaks
    assert stop.grace() == 10
    stop.ask(0)
    assert stop.grace() == 0
