"""Ray, started for one audit and ended with it, or somebody else's cluster, joined and left."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import ray

from magneton_dist.cluster.calls import first_line
from magneton_dist.cluster.guard import FOLDER, session_folder
from magneton_dist.cluster.placement import LOGICAL, Node
from magneton_dist.cluster.processes import Process, adopt_orphans, command, descendants, end, shared_files
from magneton_dist.cluster.vitals import Vitals
from magneton_dist.errors import ClusterError

LOCAL = "local"
RAY = "r"  # below the session's folder: Ray opens its own to everybody
HEAD, HERE = "the cluster's head", "this node"
_AUTH_MODE = "RAY_AUTH_MODE"
_END_S = 10.0
_STORE_BYTES = 100 * 2**20
_HEALTH = {
    # the driver must not end itself when the head dies: it has a record to finish
    "gcs_rpc_server_reconnect_timeout_s": 3600,
    # a killed raylet is noticed in 2 s instead of 15
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_worker_niceness": "0",  # the job runs below a worker, and must have the priority of its user's shell
}


class Session:
    """A context in which Ray's actors can be made.

    Without an address Ray runs on this machine, for this process only: token authentication with a token that
    is nowhere but in its environment, everything else in a private folder that goes with it.

    Args:
        address: of a running cluster, or None.
        ranks: logical places for ranks that a machine without GPUs offers.

    Attributes:
        temporary: the private folder; None on a cluster.
        vitals: of the servers that this session lives on.
    """

    def __init__(self, address: str | None, ranks: int) -> None:
        self._address = address
        self._ranks = ranks
        self._joined = False
        self._lost = False
        self._before = shared_files()
        self.temporary: Path | None = None
        self.vitals: Vitals[str]

    def __enter__(self) -> Session:
        try:
            if ray.is_initialized():
                self._joined = True
            elif self._address is None:
                self._start()
            else:
                self._connect(self._address)
            self.vitals = Vitals(self._servers())
        except BaseException:  # what has started so far must not stay
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        waits = self._lost and self.temporary is not None  # for servers that are gone: let it do so when Python ends
        if not self._joined and not waits:
            ray.shutdown()
        if self.temporary is not None:
            self._end_servers()
            adopt_orphans(False)
            shutil.rmtree(self.temporary, ignore_errors=True)

    def nodes(self) -> list[Node]:
        """Living nodes of the cluster."""
        return [
            Node(node["NodeID"], node["NodeManagerHostname"], node["Resources"])
            for node in ray.nodes()  # type: ignore[no-untyped-call]
            if node["Alive"]
        ]

    def give_up(self) -> None:
        """Ray is broken: a session of our own will be left without asking it, which would take long."""
        self._lost = True

    def abandon(self) -> None:
        """Give up, and end what Ray has left here at once."""
        self.give_up()
        if self.temporary is not None:
            self._end_servers()

    def _end_servers(self) -> None:
        """End Ray's processes of this session and what they started."""
        marks = (str(self.temporary), "ray::", "magneton_dist.cluster.supervisor")
        ended: set[Process] = set()

        def ours() -> list[Process]:
            below = descendants(os.getpid())
            found = {process.pid for process in below if any(mark in command(process.pid) for mark in marks)}
            for process in below:  # parents come before their children
                if process.parent in found:
                    found.add(process.pid)
            alive = [process for process in below if process.pid in found]
            ended.update(alive)
            return alive

        end(ours, self._before, _END_S)
        for process in ended:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)

    def _start(self) -> None:
        self.temporary = _folder()
        self.temporary.mkdir(mode=0o700, exist_ok=True)  # an earlier session of this process took it along
        adopt_orphans()  # of Ray's: those that a killed raylet leaves
        settings = _SETTINGS | {"RAY_AUTH_TOKEN": _token()}
        self._init(
            settings,
            address=LOCAL,
            num_cpus=0,
            resources={LOGICAL: self._ranks},
            include_dashboard=False,
            object_store_memory=_STORE_BYTES,
            _temp_dir=str(self.temporary / RAY),
            _system_config=_HEALTH,
        )

    def _connect(self, address: str) -> None:
        if address.startswith("ray://"):
            raise ClusterError(
                "the Ray client protocol is not supported",
                where=f"--address {address}",
                do="run on a node of the cluster, with --address auto or the head's host:port",
            )
        self._init(_SETTINGS, address=address)

    def _init(self, settings: Mapping[str, str], **options: Any) -> None:
        try:
            with _environment(settings, local=options["address"] == LOCAL), _safe_folder(self.temporary):
                ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise ClusterError(
                f"Ray does not start: {first_line(error)}",
                where=str(options["address"]),
                do="check the address, or run `magneton-dist doctor`",
            ) from error

    @staticmethod
    def _servers() -> dict[str, tuple[str, int]]:
        context = ray.get_runtime_context()
        host, _, port = context.gcs_address.rpartition(":")
        found = {HEAD: (host.strip("[]"), int(port))}
        for node in ray.nodes():  # type: ignore[no-untyped-call]
            if node["NodeID"] == context.get_node_id():
                found[HERE] = (node["NodeManagerAddress"], node["NodeManagerPort"])
        return found


# Ray keeps the first token and the first folder that a process gave it, so all sessions of a process share them.


@cache
def _token() -> str:
    return secrets.token_hex(16)


@cache
def _folder() -> Path:
    given = os.environ.get(FOLDER)
    return Path(given) if given else session_folder()


@contextmanager
def _environment(settings: Mapping[str, str], local: bool) -> Iterator[None]:
    """`settings` for Ray to inherit; the driver's own environment is as before afterwards."""
    changed = {name: os.environ.get(name) for name in (*settings, _AUTH_MODE, "CUDA_VISIBLE_DEVICES")}
    os.environ.update(settings)
    if local:
        os.environ.pop(_AUTH_MODE, None)  # unset, a new cluster asks for tokens; set, it is too late to be read
    if changed["CUDA_VISIBLE_DEVICES"] == "":
        del os.environ["CUDA_VISIBLE_DEVICES"]  # Ray refuses an empty list
    try:
        yield
    finally:
        for name, text in changed.items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text


@contextmanager
def _safe_folder(folder: Path | None) -> Iterator[None]:
    """Ray puts the driver's working folder first on its workers' path: it must hold no module of the user."""
    before = Path.cwd()
    os.chdir(folder or "/")
    try:
        yield
    finally:
        os.chdir(before)
