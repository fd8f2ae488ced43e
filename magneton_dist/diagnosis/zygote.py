"""A process that has imported torch and done nothing else: it forks a fresh process for every question.

``python -m magneton_dist.diagnosis.zygote`` reads one question a line from standard input (JSON) and answers each
with one line (JSON). Whatever a question does to its process ends with it. Standard library and torch.

CUDA works in a forked process as long as nobody began it before the fork, and here nobody does: it is what
multiprocessing calls a fork server. Where something else began it (what is injected into every process, say), calls on
a GPU are made in processes of their own instead (``--once``), each of which imports torch first.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch

from magneton_dist.diagnosis import switches
from magneton_dist.diagnosis.native import slices
from magneton_dist.diagnosis.native.launches import launches, prepare
from magneton_dist.diagnosis.native.steps import steps
from magneton_dist.diagnosis.read_set import NotPossibleError, getters, read_set
from magneton_dist.diagnosis.replica import replica_of
from magneton_dist.diagnosis.signature import measure_clock, signature

_PR_SET_PDEATHSIG = 1
_FIRST = "1000"  # whom the kernel kills when memory runs out
_DRIVER, _NOT_INITIALIZED = "libcuda.so.1", 3
_ONCE = "--once"
Question = dict[str, Any]
Answer = dict[str, Any]


def answer(question: Question) -> Answer:
    """What comes of one question, in this process.

    Keys of a question:
        settings: torch's settings, name -> text. flips: [name, text] to set afterwards, in order.
        read: names of settings to read back.
        getters: those of torch's global settings to ask directly.
        call: the operator call, if any. signature, seconds, read_set: what is wanted of it; repeat_s: repeat it for so
            long; launches, steps (arguments
            of `native.steps.steps`), slice (those of `native.slices.source`): what its machine code tells.
    """
    refused = switches.apply(switches.general_first(question["settings"]))
    # a second time: a general setting may have moved a special one
    refused = switches.apply(switches.general_first(question["settings"])) if refused else refused
    refused += switches.apply((name, text) for name, text in question["flips"])
    found: Answer = {"refused": refused, "read": switches.read(question["read"])}
    if question["getters"]:
        known = getters()
        found["getters"] = {name: known[name]() for name in question["getters"] if name in known}
    if question["call"] is None:
        return found
    if question["slice"]:
        return found | {"slice": slices.source(**question["slice"])}
    if question["launches"] or question["steps"]:
        torch.set_num_threads(1)  # one thread is followed
    replica = replica_of(question["call"])
    replica()
    if question["signature"]:
        found["signature"] = signature(replica, gpu=replica.gpu)
    if question["seconds"]:
        found["seconds"] = median(replica.seconds())
    if question["repeat_s"]:
        found["repeated"] = replica.repeated(question["repeat_s"])
    if question["read_set"]:
        found["read_set"] = read_set(replica)
    if question["launches"]:
        replica()  # what is made once was made
        found["launches"] = launches(replica)
    if question["steps"]:
        replica()
        found["steps"] = steps(replica, **question["steps"])
    return found


def _answered(question: Question) -> bytes:
    """The answer of this process, as JSON."""
    signal.alarm(question["limit_s"])  # its default action ends this process
    try:
        found = answer(question)
    except BaseException as error:  # noqa: BLE001 - whatever went wrong is the answer
        found = {"error": f"{type(error).__name__}: {error}"[:500]}
    return json.dumps(found).encode()


def _in_child(question: Question) -> bytes:
    """The answer of a forked process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _end_with_parent()
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(_answered(question))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    return _said(question, data, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _spawned(question: Question) -> bytes:
    """The answer of a process that shares nothing with this one."""
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "magneton_dist.diagnosis.zygote", _ONCE], input=json.dumps(question).encode(),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return _said(question, ended.stdout, ended.returncode)


def _said(question: Question, data: bytes, code: int) -> bytes:
    """What a process said that ended with this exit code; a negative one is a signal's."""
    if code < 0:
        name = signal.Signals(-code).name
        how = f"was ended after {question['limit_s']} s" if name == "SIGALRM" else f"ended with {name}"
        return json.dumps({"error": f"the process {how}", "lost": True}).encode()
    return data or json.dumps({"error": "the process ended without an answer", "lost": True}).encode()


def _must_spawn(question: Question) -> bool:
    """Is it a call on a GPU, and has something begun CUDA in this process?"""
    tensors = question["call"]["tensors"].values() if question["call"] else ()
    if not any(tensor["device"].startswith("cuda") for tensor in tensors):
        return False
    try:
        driver = ctypes.CDLL(_DRIVER, os.RTLD_NOLOAD)
    except OSError:  # nobody has even loaded it
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED)


def _known_getters() -> list[str]:
    try:
        return list(getters())
    except NotPossibleError:  # the layer says so when it is asked
        return []


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _go_first() -> None:
    """Whatever a call takes, no other process is killed for its memory; those that are forked have it from here."""
    with suppress(OSError):  # it only makes that likelier
        Path("/proc/self/oom_score_adj").write_text(_FIRST)


def main(once: bool) -> None:
    """Answer until standard input ends, or one question, in this process."""
    _end_with_parent()
    _go_first()
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # what libraries print is no answer
    if once:
        answers.write(_answered(json.loads(sys.stdin.readline())))
        os._exit(0)  # whatever the call left behind
    answers.write(json.dumps({"torch": torch.__version__, "getters": _known_getters()}).encode() + b"\n")
    for line in sys.stdin:
        question = json.loads(line)
        if question["signature"]:
            measure_clock()
        if question["launches"]:
            with suppress(NotPossibleError):  # the answer says so
                prepare()
        answers.write((_spawned if _must_spawn(question) else _in_child)(question) + b"\n")


if __name__ == "__main__":
    main(once=_ONCE in sys.argv)
