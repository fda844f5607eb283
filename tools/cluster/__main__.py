"""``python3 -m tools.cluster up|down|status|load-image|kubeconfig --name NAME``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools import progress
from tools.cluster import DEFAULT_NAME, PROFILES, Cluster, Status


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.cluster", description="Manage a local Kubernetes cluster of real components."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    summaries = {
        "up": "start a new cluster",
        "down": "stop the cluster and remove everything that it created",
        "status": "show addresses and running programs",
        "load-image": "import image archives into all nodes",
        "kubeconfig": "print the path of the kubeconfig",
    }
    parsers = {name: commands.add_parser(name, help=text) for name, text in summaries.items()}
    for command in parsers.values():
        command.add_argument("--name", default=DEFAULT_NAME, help=f"name of the cluster (default {DEFAULT_NAME})")
    up = parsers["up"]
    up.add_argument(
        "--profile", choices=PROFILES, default="full", help="full: runs pods, needs root; api: only etcd and API server"
    )
    up.add_argument("--nodes", type=int, default=1, help="number of nodes of profile full (default 1)")
    up.add_argument(
        "--with",
        dest="extras",
        action="append",
        default=[],
        choices=["controller-manager"],
        help="additional program for profile api",
    )
    up.add_argument("--index", type=int, help="0 to 31: selects the address ranges (default: derived from the name)")
    up.add_argument("--api-port", type=int, help="profile api: the API server's port (default: a free one)")
    parsers["load-image"].add_argument("archives", nargs="+", type=Path, metavar="ARCHIVE")
    return parser.parse_args()


def _print_status(status: Status) -> None:
    print(f"cluster     {status.name} ({status.profile}): {'up' if status.up else 'NOT UP'}")
    print(f"server      {status.server}\nkubeconfig  {status.kubeconfig}\nkubectl     {status.kubectl}")
    print(f"machine     {status.machine_ip} (address of this machine for pods)\naudit log   {status.audit_log}")
    for name, runs in status.running.items():
        print(f"  {'running' if runs else 'EXITED '} {name}")


def main() -> int:
    """Returns the exit status."""
    arguments = _arguments()
    try:
        if arguments.command == "up":
            cluster = Cluster(
                arguments.name,
                arguments.profile,
                nodes=arguments.nodes,
                extras=arguments.extras,
                index=arguments.index,
                api_port=arguments.api_port,
            )
            _print_status(cluster.up().status())
            return 0
        cluster = Cluster(arguments.name)
        if arguments.command == "down":
            cluster.down()
        elif arguments.command == "load-image":
            print("\n".join(cluster.load_image(*arguments.archives)))
        elif arguments.command == "kubeconfig":
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
