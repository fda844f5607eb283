"""``python3 -m tools.cluster up|down|status|load-image|kubeconfig --name NAME``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools import progress
from tools.cluster import DEFAULT_NAME, PROFILES, Cluster, Status


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m tools.cluster", description="A real Kubernetes on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    about = {
        "up": "bring it up from nothing",
        "down": "end it; leaves nothing",
        "status": "what runs, and where",
        "load-image": "import image archives into its nodes",
        "kubeconfig": "print the path of its kubeconfig",
    }
    made = {name: commands.add_parser(name, help=text) for name, text in about.items()}
    for command in made.values():
        command.add_argument("--name", default=DEFAULT_NAME, help=f"which cluster (default {DEFAULT_NAME})")
    up = made["up"]
    up.add_argument(
        "--profile", choices=PROFILES, default="full", help="full: pods run, needs root; api: etcd and API server alone"
    )
    up.add_argument("--nodes", type=int, default=1, help="nodes of profile full (default 1)")
    up.add_argument(
        "--with", dest="extras", action="append", default=[], choices=["controller-manager"], help="beside profile api"
    )
    up.add_argument("--index", type=int, help="0 to 31: which address ranges; follows from the name when left out")
    up.add_argument("--api-port", type=int, help="profile api: the API server's port (default: a free one)")
    made["load-image"].add_argument("archives", nargs="+", type=Path, metavar="ARCHIVE")
    return parser.parse_args()


def _print_status(status: Status) -> None:
    print(f"cluster     {status.name} ({status.profile}): {'up' if status.up else 'NOT UP'}")
    print(f"server      {status.server}\nkubeconfig  {status.kubeconfig}\nkubectl     {status.kubectl}")
    print(
        f"machine     {status.machine_ip} (where pods reach programs of this machine)\naudit log   {status.audit_log}"
    )
    for name, runs in status.running.items():
        print(f"  {'runs ' if runs else 'ENDED'} {name}")


def main() -> int:
    """Returns the exit status."""
    asked = _arguments()
    try:
        if asked.command == "up":
            cluster = Cluster(
                asked.name,
                asked.profile,
                nodes=asked.nodes,
                extras=asked.extras,
                index=asked.index,
                api_port=asked.api_port,
            )
            _print_status(cluster.up().status())
            return 0
        cluster = Cluster(asked.name)
        if asked.command == "down":
            cluster.down()
        elif asked.command == "load-image":
            print("\n".join(cluster.load_image(*asked.archives)))
        elif asked.command == "kubeconfig":
            print(cluster.status().kubeconfig)
        else:
            status = cluster.status()
            _print_status(status)
            return 0 if status.up else 1
    except (progress.StepFailed, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
