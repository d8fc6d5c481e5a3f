"""The real neighbours of the controller, run for tests: control planes, Prometheus, Thanos, users and a bad network.

    from tests.stack.fleet import ALL, Fleet
    from tests.stack.users import Service

    web = Service("web", {"europe-west1": 40.0, "asia-south1": {"shape": 10.0}})
    with Fleet.start(services=(web,), history_days=14) as fleet:
        fleet.add_nodes()
        fleet.deploy(deployment("web", replicas=3))
        fleet.deploy(service("web"))
        ...

`make stack` builds the programs. Every wait here has a deadline, and nothing that is started outlives its owner.
"""
