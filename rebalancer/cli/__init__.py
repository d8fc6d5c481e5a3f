"""The door: `rebalancer`. Heavy packages are imported only by the command that needs them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rebalancer import __version__
from rebalancer.errors import RebalancerError

DEFAULT_CONFIG = "rebalancer.yaml"


def _config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", "-c", type=Path, action="append", metavar="PATH",
        help=f"YAML file or folder; may be given more than once (default: {DEFAULT_CONFIG})",
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rebalancer",
        description="Moves replicas of a service between Kubernetes clusters, by measured network and forecast load.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    demo = commands.add_parser("demo", help="a day of a simulated fleet, without a cluster, in under a minute")
    demo.add_argument("--out", type=Path, default=Path("rebalancer-demo.html"), help="where the page goes")
    demo.add_argument("--seed", type=int, default=1, help="the same seed gives the same day (default: 1)")
    init = commands.add_parser("init", help="writes a configuration of what metrics and kubeconfig say of the fleet")
    init.add_argument("url", help="of a Prometheus or Thanos Query, for example http://localhost:9090")
    init.add_argument("--kubeconfig", default="~/.kube/config", metavar="PATH", help="default: ~/.kube/config")
    init.add_argument(
        "--out", type=Path, default=Path(DEFAULT_CONFIG), help=f"where it goes (default: {DEFAULT_CONFIG})"
    )
    init.add_argument("--bearer-token-file", default="", metavar="PATH", help="token for the metrics backend")
    init.add_argument("--ca-file", default="", metavar="PATH", help="CA of the metrics backend")
    check = commands.add_parser("check", help="says what is missing, and what that degrades")
    _config(check)
    plan = commands.add_parser("plan", help="shows what would be done, with reasons; changes nothing")
    _config(plan)
    plan.add_argument("--output", "-o", choices=("table", "json"), default="table")
    explain = commands.add_parser("explain", help="says why, for one workload")
    _config(explain)
    explain.add_argument("workload", help="namespace/name")
    network = commands.add_parser("network", help="shows the measured paths between clusters, and how sure they are")
    _config(network)
    network.add_argument("cluster", nargs="?", help="only the paths of this cluster")
    network.add_argument("--output", "-o", choices=("table", "json"), default="table")
    forecast = commands.add_parser(
        "forecast", help="shows one workload's demand, its forecast, and whether to trust it"
    )
    _config(forecast)
    forecast.add_argument("workload", help="namespace/name")
    forecast.add_argument("--output", "-o", choices=("text", "json", "html"), default="text")
    forecast.add_argument("--demo", action="store_true", help="of the demo's simulated fleet; needs no cluster")
    run = commands.add_parser("run", help="runs the controller; it only observes unless --act is given")
    _config(run)
    run.add_argument("--act", action="store_true", help="carry out what is planned")
    record = commands.add_parser("record", help="writes the history of demand to a file, for replay")
    _config(record)
    record.add_argument("out", type=Path, help="for example history.npz")
    rollout = commands.add_parser("rollout", help="looks at canary rollouts and steers them")
    _config(rollout)
    rollout.add_argument("verb", choices=("list", "get", "abort", "promote", "pause", "resume", "retry", "undo"))
    rollout.add_argument("name", nargs="?", help="namespace/name; not needed for list")
    rollout.add_argument("--full", action="store_true", help="promote: skip all remaining steps")
    install = commands.add_parser("install", help="renders what the hub and the members need, as YAML")
    install.add_argument("what", choices=("crds", "rbac"))
    reasons = commands.add_parser("reasons", help="lists all reason ids with their next steps")
    reasons.add_argument("id", nargs="?")
    return parser


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses; argparse takes no optional name behind an option, as in `rollout promote --full shop/web`."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if arguments.command == "rollout" and arguments.name is None and len(rest) == 1 and not rest[0].startswith("-"):
        arguments.name, rest = rest[0], []
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    arguments = _arguments(argv)
    try:
        return _dispatch(arguments)
    except RebalancerError as error:
        print(error, file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        # The demo installs a tenth of the packages; what else is missing is no fault of the code.
        if error.name is None or error.name.partition(".")[0] == "rebalancer":
            raise
        print(
            f"`rebalancer {arguments.command}` needs the controller's packages ({error.name} is missing): "
            "pip install 'fleet-rebalancer[controller]', or in a checkout pip install -e '.[controller]'",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has seen enough (`| head`); Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "demo":
            from rich.console import Console

            from rebalancer import demo

            return demo.run(arguments.out, arguments.seed, Console())
        case "forecast" if arguments.demo:
            from rebalancer import demo

            print(demo.forecast(arguments.workload, arguments.output))
            return 0
        case "reasons":
            return _reasons(arguments.id)
        case "init":
            return _init(arguments)
        case "install":
            from rebalancer import install

            sys.stdout.write(install.render_crds() if arguments.what == "crds" else install.render_rbac())
            return 0
        case _:
            from rebalancer.cli import live

            return live.dispatch(arguments, arguments.config or [Path(DEFAULT_CONFIG)])


def _init(arguments: argparse.Namespace) -> int:
    from pydantic import ValidationError

    from rebalancer import init

    try:
        told = init.run(
            arguments.url, arguments.kubeconfig, arguments.out, arguments.bearer_token_file, arguments.ca_file
        )
    except ValidationError as error:
        print(f"{arguments.url}: {error.errors()[0]['msg'].removeprefix('Value error, ')}", file=sys.stderr)
        return 1
    print(told)
    return 0


def _reasons(wanted: str | None) -> int:
    from rebalancer.core.reasons import REASONS

    if wanted is not None and wanted not in REASONS:
        print(f"{wanted}: no such reason id; `rebalancer reasons` lists all", file=sys.stderr)
        return 1
    for reason in REASONS.values():
        if wanted in (None, reason.id):
            print(f"{reason.kind:6} {reason.id:24} {reason.sentence} {reason.next_step}".rstrip())
    return 0
