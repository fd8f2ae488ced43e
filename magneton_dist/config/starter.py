"""A configuration to start from, written from a command line that already works."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import yaml

from magneton_dist.config.placeholders import literal
from magneton_dist.errors import InputError

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
# Numbers and yes/no need no quotes: loading keeps them as they are written.
_PLAIN = re.compile(r"-{0,2}[A-Za-z0-9_./][A-Za-z0-9_./=-]*")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
# Options of torchrun by which processes of several nodes find each other: the audit places nodes itself.
_PLACING = {
    "node_rank", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "master_addr", "local_addr",
}  # fmt: skip
_NUMBERS = {"nnodes", "max_restarts", "master_port"}
_RUNS = {"module", "training_script", "training_script_args", "help"}

_TEXT = """\
# Written by `magneton-dist init`. Try it: magneton-dist launch FILE --dry-run
{notes}name: {name}
job:
{job}
# One variant alone is audited alone. To compare, name two; each overrides or extends (args+) the job:
# variants:
#   as-is:
#   changed: {{args+: [--flag, value]}}   # also: env, python, cwd, torchrun, seed
# baseline: as-is
repeats: 3
energy: {{meter: auto}}   # nvml, rapl, modelled:h200, null
"""


def starter(words: Sequence[str]) -> str:
    """The text of a configuration that runs the command line `words`.

    Torchrun's own parser reads torchrun's options; any other command becomes `command:`. Variables set in
    front of the command (``A=1 torchrun ...``) become `env:`.

    Raises:
        InputError: there is no command, torchrun would refuse it, or its script does not exist.
    """
    env: dict[str, str] = {}
    rest = list(words)
    while rest and (found := _ASSIGNMENT.fullmatch(rest[0])):
        env[found[1]] = literal(found[2])
        rest.pop(0)
    if not rest:
        raise InputError("no command line", do="magneton-dist init -- torchrun --nproc-per-node 2 train.py")
    launcher = _launcher(rest)
    if launcher:
        job, notes = _torchrun(rest[launcher:])
        python = _other_python(rest[0])
        job |= {"python": python} if python else {}
    else:
        job = {"torchrun": {"nproc_per_node": 1}, "command": [literal(word) for word in rest]}
        notes = ["set nproc_per_node (and nnodes) to the ranks that the command starts"]
    job |= {"env": env} if env else {}
    what = str(job.get("module") or Path(str(job.get("script") or rest[0])).stem)
    return _TEXT.format(
        notes="".join(f"# Note: {note}\n" for note in notes),
        name=re.sub(r"[^A-Za-z0-9_-]+", "-", what).strip("-_")[:64] or "job",
        job="\n".join(f"  {key}: {_flow(value)}" for key, value in job.items()),
    )


def _launcher(words: Sequence[str]) -> int:
    """How many of `words` say torchrun: ``torchrun`` or ``python -m torch.distributed.run``; 0 for none."""
    name = Path(words[0]).name
    if name == "torchrun":
        return 1
    return 3 if _PYTHON.fullmatch(name) and list(words[1:3]) == ["-m", "torch.distributed.run"] else 0


def _other_python(program: str) -> str | None:
    """The interpreter that `program` (python or torchrun) belongs to, where it is not this one."""
    found = shutil.which(program)
    if found is None or Path(found).parent == Path(sys.executable).parent:
        return None
    beside = Path(found).with_name("python") if Path(found).name == "torchrun" else Path(found)
    return str(beside) if beside.is_file() else None


def _torchrun(words: Sequence[str]) -> tuple[dict[str, object], list[str]]:
    """Keys of the job, and what a reader must know, from the words after torchrun."""
    from torch.distributed.run import get_args_parser

    parser: ArgumentParser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise InputError(f"torchrun would refuse: {message}", where=shlex.join(words))

    parser.error = refuse  # type: ignore[method-assign]
    given = parser.parse_args(list(words))
    torchrun, extra, notes = _options(parser, given)
    job: dict[str, object] = {"torchrun": torchrun | ({"extra": extra} if extra else {})}
    if given.module:
        job["module"] = given.training_script
    else:
        job["script"] = given.training_script
        if not Path(given.training_script).is_file():
            raise InputError(f"there is no file {given.training_script!r}", do=f"looked in {Path.cwd()}")
    if given.training_script_args:
        job["args"] = [literal(word) for word in given.training_script_args]
    return job, notes


def _options(parser: ArgumentParser, given: Namespace) -> tuple[dict[str, int], list[str], list[str]]:
    numbers = {"nproc_per_node": _ranks(given.nproc_per_node)}
    extra: list[str] = []
    notes: list[str] = []
    for action in parser._actions:
        value = getattr(given, action.dest, None)
        if action.dest in _RUNS or action.dest == "nproc_per_node" or value == action.default:
            continue
        words = [action.option_strings[-1].replace("_", "-")]
        words += [] if action.nargs == 0 else [str(value)]
        if action.dest == "standalone":  # what the audit does of itself
            continue
        if action.dest in _PLACING:
            notes.append(f"left out {shlex.join(words)}: the audit places nodes itself")
        elif action.dest in _NUMBERS:
            numbers[action.dest] = _number(action.dest, str(value))
        else:
            extra += words
    return numbers, extra, notes


def _ranks(text: str) -> int:
    """``--nproc-per-node``: a number, or cpu, gpu, auto, as torchrun counts them here."""
    from torch.distributed.run import determine_local_world_size

    try:
        return int(determine_local_world_size(text))
    except ValueError as error:
        raise InputError(f"--nproc-per-node {text}: {error}", do="give the number of ranks") from error


def _number(option: str, text: str) -> int:
    low, _, high = text.partition(":")
    if not low.isdecimal() or (high or low) != low:
        do = "an audit needs the same ranks in every run: give one number"
        raise InputError(f"--{option.replace('_', '-')} {text} is not one number", do=do)
    return int(low)


def _flow(value: object) -> str:
    """One line of YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() != "null":
        return text
    return yaml.safe_dump(text, default_style='"', width=sys.maxsize, allow_unicode=True).strip()
