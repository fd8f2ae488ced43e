"""Work shared out among processes: `shared_work.py calls`, or `shared_work.py launch CONFIG RUNS`, below a guard."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from magneton_dist import audits
from magneton_dist.cluster import driver, tasks
from magneton_dist.cluster.interrupts import Interrupts
from magneton_dist.cluster.session import Session
from magneton_dist.config import load
from magneton_dist.detect.regions import classes
from magneton_dist.errors import MagnetonError


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (MagnetonError, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"


def calls() -> None:
    with Interrupts() as interrupts, Session(None, 1):
        interrupts.arm()
        found = {
            "squares": tasks.run_all(math.sqrt, [n * n for n in range(7)]),
            "one": tasks.run_all(math.sqrt, [4]),
            "raised": attempt(lambda: tasks.run_all(math.sqrt, [1, -1, 4])),
            "died": attempt(lambda: tasks.run_all(os._exit, [3, 3])),
        }
        threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        began_s = time.monotonic()
        with interrupts.let_through():
            found["interrupted"] = attempt(lambda: tasks.run_all(time.sleep, [600, 600]))
        found["after_s"] = time.monotonic() - began_s
    print(json.dumps(found))


def launch(config: str, runs: str) -> None:
    shared = []

    def run_all(function: Any, items: Any) -> Any:
        shared.append([function.__name__, len(items)])
        return tasks.run_all(function, items)

    classes.WORTH_SHARING = 0
    driver.run_all = run_all
    outcome = audits.launch(load(Path(config), [f"runs={runs}"]))
    regions = [[r.title, r.kind, r.places, r.confidence] for r in outcome.audit.regions]
    print(json.dumps({"shared": shared, "regions": regions, "folder": str(outcome.folder)}))


{"calls": calls, "launch": launch}[sys.argv[1]](*sys.argv[2:])
