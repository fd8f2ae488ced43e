"""Which files are traces of which ranks, and on which host each rank ran."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from magneton_dist.errors import InputError, RecordError

MOST_RANKS = 1_000_000  # of a job; a larger number is a time, a process or damage
SUFFIXES = (".json", ".json.gz", ".gz")
_IN_NAME = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)
# torch.profiler.tensorboard_trace_handler: HOST_PID.TIME.pt.trace.json
_HANDLER = re.compile(r"^(?P<host>.+)_\d+\.\d+\.pt\.trace\.json")


def trace_files(given: Sequence[str | Path]) -> list[Path]:
    """The files meant by files, folders (their own JSON files, not those of folders within) and globs.

    Links that lead nowhere are among them, so that whoever reads them can say so.

    Raises:
        RecordError: one of them is not there or cannot be listed, or a folder has no JSON.
    """
    files: dict[Path, None] = {}
    for item in map(str, given):
        path = Path(item)
        try:
            found = _meant(path)
            folder = path.is_dir()
        except OSError as error:
            raise RecordError(f"cannot be read: {error.strerror}", where=item) from error
        if not found:
            what = "holds no .json or .json.gz file" if folder else "no such record, trace, folder or glob"
            raise RecordError(what, where=item, do="give what launch left, or a folder of profiler traces")
        files |= dict.fromkeys(found)
    return list(files)


def _meant(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(p for p in path.iterdir() if p.name.endswith(SUFFIXES) and not p.is_dir())
    return [path] if path.is_file() else [p for p in _globbed(str(path)) if not p.is_dir()]


def _globbed(pattern: str) -> list[Path]:
    return [Path(p) for p in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207 - takes absolute patterns


def rank_pattern(text: str | None) -> re.Pattern[str] | None:
    """The pattern of `--rank-regex`: its first group is the rank.

    Raises:
        InputError: it is no regular expression, or has no group.
    """
    if text is None:
        return None
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise InputError(f"is no regular expression: {error}", where=f"--rank-regex {text}") from error
    if not pattern.groups:
        do = r"put the rank in parentheses, such as 'worker(\d+)'"
        raise InputError("has no group", where=f"--rank-regex {text}", do=do)
    return pattern


def rank_of(path: Path, said: int | None, pattern: re.Pattern[str] | None) -> int | None:
    """The rank of a file: by the user's pattern on its path, else by what it says itself, else by its name."""
    if pattern is not None:
        found = pattern.search(str(path))
        return int(found[1]) if found and found[1] and found[1].isdecimal() else None
    if said is not None and said >= 0:
        return said
    named = _IN_NAME.search(path.name)
    return int(named[1]) if named else None


def host_of(path: Path, rank: int, device: str, said: str | None = None) -> str:
    """The host of a rank: as its trace says, else by the file's name.

    Where neither says it, ranks whose device numbers go with them share one. A name that every host may give itself
    says nothing.
    """
    if said and said.partition(".")[0] != "localhost":
        return said
    named = _HANDLER.match(path.name)
    if named:
        return named["host"]
    number = device.partition(":")[2]
    return f"host of rank {rank - int(number)}" if number and int(number) <= rank else f"host of rank {rank}"
