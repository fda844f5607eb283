"""``python3 -m tools.services postgres|engine up|down --name N [--listen ADDR:PORT]``."""

from __future__ import annotations

import argparse
import sys

from tools import progress
from tools.services.engine import Engine
from tools.services.postgres import Postgres


def main() -> int:
    """Prints the URL of the service on ``up``; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.services", description="Manage PostgreSQL and a model server for tests."
    )
    services = parser.add_subparsers(dest="service", required=True)
    for service in ("postgres", "engine"):
        one = services.add_parser(service)
        one.add_argument("command", choices=("up", "down"))
        one.add_argument("--name", default=service)
        one.add_argument("--listen", default="127.0.0.1:0", metavar="ADDR:PORT", help="port 0 selects a free port")
        if service == "engine":
            one.add_argument("--alias", default="smollm2", help="name of the model")
            one.add_argument("--parallel", type=int, default=2, help="number of concurrent requests")
            one.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    try:
        if arguments.service == "postgres":
            service: Postgres | Engine = Postgres(arguments.name, arguments.listen)
        else:
            service = Engine(
                arguments.name,
                arguments.listen,
                arguments.alias,
                parallel=arguments.parallel,
                threads=arguments.threads,
            )
        if arguments.command == "up":
            print(service.up().url)
        else:
            service.down()
    except (progress.StepFailed, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
