"""``python -m tests.services start|stop|status|hold``: what make and pytest call."""

import argparse
import sys
from concurrent.futures import Future, ThreadPoolExecutor

from tests.services import HOME, Unavailable
from tests.services.process import Running
from tests.services.sharing import SERVICES, Used, stop
from tests.services.tls import material


def addresses(running: list[Running]) -> dict[str, str]:
    """What a program needs to reach them, as environment variables."""
    found = {}
    for one in running:
        for kind, port in one.ports.items():
            found[f"HEADRACE_{one.name}_{kind}".upper()] = f"127.0.0.1:{port}"
    return found


def started() -> dict[str, Future[Used]]:
    """All of them at once."""
    material()
    with ThreadPoolExecutor(len(SERVICES)) as pool:
        return {name: pool.submit(Used, name) for name in SERVICES}


def hold() -> int:
    """Has every service run until nobody holds our input, so that those who ask for one need not wait for it."""
    found = started()
    sys.stdin.read()
    for future in found.values():
        if future.exception() is None:
            future.result().release()
    return 0


def start() -> int:
    running, missing = [], 0
    for name, future in started().items():
        try:
            used = future.result()
        except Unavailable as error:
            missing += 1
            print(f"{name}: not available: {error}", file=sys.stderr)
            continue
        used.keep()
        found = used.running
        running.append(found)
        ports = ", ".join(f"{kind} 127.0.0.1:{port}" for kind, port in found.ports.items())
        print(f"{name}: {'started' if used.is_new else 'runs already'}, pid {found.pid}, {ports}, log {found.log}")
    lines = [f"{name}={value}" for name, value in addresses(running).items()]
    (HOME / "services.env").write_text("\n".join(lines) + "\n")
    print(f"addresses in {HOME / 'services.env'}, certificates in {HOME / 'tls'}")
    return 1 if missing else 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.services", description=__doc__)
    parser.add_argument("what", choices=["start", "stop", "status", "hold"])
    what = parser.parse_args(arguments).what
    if what == "stop":
        others = sorted({path.stem for path in (HOME / "run").glob("*.json")} - set(SERVICES))
        for name in [*SERVICES, *others]:  # others: nodes of tests that were killed
            print(f"{name}: {'stopped' if stop(name) else 'was not running'}")
    elif what == "status":
        for name in SERVICES:
            known = Running.known(name)
            print(f"{name}: " + (f"pid {known.pid}, {dict(known.ports)}" if known else "not running"))
    return {"start": start, "hold": hold}.get(what, int)()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
