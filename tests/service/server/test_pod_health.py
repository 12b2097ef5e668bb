from headstart.server.pod_health import PodHealth


class Engine:
    """What health looks at, settable."""

    is_alive = True
    is_ready = False
    is_draining = False
    step_age_s = 0.0


def state(health):
    return health.is_live(), health.is_ready(), health.is_started()


def test_a_pod_that_loads_lives_but_is_neither_started_nor_ready():
    health, engine = PodHealth(), Engine()
    assert state(health) == (True, False, False)
    health.attach(engine)
    assert state(health) == (True, False, False)
    engine.is_ready = True
    assert state(health) == (True, True, True)


def test_a_step_that_does_not_end_is_no_life_but_a_long_one_is():
    health, engine = PodHealth(max_step_age_s=60.0), Engine()
    health.attach(engine)
    engine.is_ready, engine.step_age_s = True, 59.0
    assert state(health) == (True, True, True)
    engine.step_age_s = 61.0
    assert health.is_live() is health.is_ready() is False


def test_a_dead_engine_is_no_life_at_once():
    health, engine = PodHealth(), Engine()
    health.attach(engine)
    engine.is_alive = engine.is_ready = False
    assert health.is_live() is health.is_ready() is False


def test_a_pod_that_leaves_lives_and_was_started_but_is_not_ready():
    health, engine = PodHealth(), Engine()
    health.attach(engine)
    engine.is_ready = True
    health.leave()
    assert state(health) == (True, False, True)
    engine.is_ready, engine.is_draining = False, True
    assert state(health) == (True, False, True)


def test_every_service_name_of_the_contract_has_its_probe():
    probes = PodHealth().probes()
    assert {"", "liveness", "readiness", "startup"} <= probes.keys()
    assert (probes["liveness"](), probes["readiness"](), probes["startup"]()) == (True, False, False)
