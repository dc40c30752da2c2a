"""``python -m tests.services start|stop|status``: what ``make services`` and ``make services-stop`` call."""

import argparse
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.services import HOME, Unavailable, cassandra, locked, redis, toxiproxy
from tests.services.process import Running, listens
from tests.services.tls import material


def start_cassandra() -> Running:
    node = cassandra.single()
    running = node.start()
    node.wait_ready(running)
    return running


SERVICES: dict[str, Callable[[], Running]] = {
    "cassandra": start_cassandra,
    "redis": redis.start,
    "toxiproxy": toxiproxy.start,
}


def ensure(name: str) -> tuple[Running, bool]:
    """The service, and whether it was started now. One that runs already and listens is kept."""
    with locked(name):
        known = Running.known(name)
        if known is not None and all(listens("127.0.0.1", port) for port in known.ports.values()):
            return known, False
        if known is not None:
            known.stop()
        return SERVICES[name](), True


def stop(name: str) -> bool:
    """Ends it, and says whether it ran. Its data goes with it."""
    with locked(name):
        known = Running.known(name)
        if known is not None:
            known.stop()
        (HOME / "run" / f"{name}.json").unlink(missing_ok=True)
        shutil.rmtree(HOME / "data" / name, ignore_errors=True)
    return known is not None


def addresses(running: list[Running]) -> dict[str, str]:
    """What a program needs to reach them, as environment variables."""
    found = {}
    for one in running:
        for kind, port in one.ports.items():
            found[f"HEADRACE_{one.name}_{kind}".upper()] = f"127.0.0.1:{port}"
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.services", description=__doc__)
    parser.add_argument("what", choices=["start", "stop", "status"])
    what = parser.parse_args(arguments).what
    if what == "stop":
        others = sorted({path.stem for path in (HOME / "run").glob("*.json")} - set(SERVICES))
        for name in [*SERVICES, *others]:  # others: nodes of tests that were killed
            print(f"{name}: {'stopped' if stop(name) else 'was not running'}")
        return 0
    if what == "status":
        for name in SERVICES:
            known = Running.known(name)
            print(f"{name}: " + (f"pid {known.pid}, {dict(known.ports)}" if known else "not running"))
        return 0
    material()
    with ThreadPoolExecutor(len(SERVICES)) as pool:
        pending = {name: pool.submit(ensure, name) for name in SERVICES}
    running, missing = [], 0
    for name, future in pending.items():
        try:
            found, now = future.result()
        except Unavailable as error:
            missing += 1
            print(f"{name}: not available: {error}", file=sys.stderr)
        else:
            running.append(found)
            ports = ", ".join(f"{kind} 127.0.0.1:{port}" for kind, port in found.ports.items())
            print(f"{name}: {'started' if now else 'runs already'}, pid {found.pid}, {ports}, log {found.log}")
    lines = [f"{name}={value}" for name, value in addresses(running).items()]
    (HOME / "services.env").write_text("\n".join(lines) + "\n")
    print(f"addresses in {HOME / 'services.env'}, certificates in {HOME / 'tls'}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
