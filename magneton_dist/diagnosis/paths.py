"""Where in Python two variants part: the last frame that both run, and what each calls there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from magneton_dist.diagnosis.lines import Sources
from magneton_dist.diagnosis.recorded import Recorded
from magneton_dist.diagnosis.rerun import Watched
from magneton_dist.records.audit import Cause

Stack = Sequence[str]  # frames, file:line function
HERE = "calls the operators there itself"


def parting(a: Recorded, b: Recorded) -> Cause | None:
    """The calls by which the sides come to other operators; None where their stacks do not part.

    What is looked at is the costliest operator of each side that the other side does not run.
    """
    stacks = [_telling_stack(mine, theirs) for mine, theirs in ((a, b), (b, a))]
    if not all(stacks) or stacks[0] == stacks[1]:
        return None
    common = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(*stacks, strict=False))]
    each = [stack[len(common)] if len(stack) > len(common) else HERE for stack in stacks]
    name = f"what {common[-1]} calls" if common else "what the program calls"
    return Cause("call", name, dict(zip((a.name, b.name), each, strict=True)), agreed=["stacks"])


def watched(a: Recorded, b: Recorded) -> tuple[Watched, Watched] | None:
    """What to watch of either side to see why it comes to other operators; None where their stacks do not part.

    The function in which the stacks part, or else the call by which they come to other functions.
    """
    stacks = [_telling_stack(mine, theirs, every_frame=True) for mine, theirs in ((a, b), (b, a))]
    return watched_between(stacks[0], stacks[1])


def watched_between(one: Stack, other: Stack) -> tuple[Watched, Watched] | None:
    """The same of two stacks, outermost frame first."""
    if not one or not other or one == other:
        return None
    common = [mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]
    places = [place_of(stack[len(common)]) for stack in (one, other) if len(stack) > len(common)]
    if len(places) == 2:
        (file, line, function), (other_file, other_line, other_function) = places
        functions = {Sources().function_of(file, each) for each in (line, other_line)}
        if (file, function) == (other_file, other_function) and len(functions) == 1:
            return Watched(file, function, None, line), Watched(file, function, None, other_line)
    if not common:
        return None
    file, line, function = place_of(common[-1])
    return Watched(file, function, line), Watched(file, function, line)


def parted_words(a: Sequence[str], b: Sequence[str]) -> tuple[str, str]:
    """Options of two command lines, with their values, that only one of them has, in their order."""
    one, other = _options(a), _options(b)
    return " ".join(each for each in one if each not in other), " ".join(each for each in other if each not in one)


def _options(words: Sequence[str]) -> list[str]:
    """Words of a command line, each option with what follows it."""
    found: list[str] = []
    for word in words:
        if found and found[-1].startswith("-") and not word.startswith("-"):
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


def place_of(frame: str) -> tuple[str, int, str]:
    """File, line and function of ``file:line function``."""
    at, _, function = frame.rpartition(" ")
    file, _, line = at.rpartition(":")
    return file, int(line), function


def _telling_stack(mine: Recorded, theirs: Recorded, *, every_frame: bool = False) -> tuple[str, ...]:
    """Frames, outermost first, of the costliest operator that the other side does not run; or just the user's."""
    others = {theirs.record.ops["name"][op] for op in theirs.ops}
    own = [place for place, op in enumerate(mine.ops) if mine.record.ops["name"][op] not in others]
    known_stacks = mine.record.op_stacks
    if every_frame:
        known_stacks = [tuple(mine.record.stacks.get(i, ())) for i in mine.record.ops["stack_id"].to_list()]
    stacks = [(mine.seconds(place), known_stacks[mine.ops[place]]) for place in own]
    known = [(seconds, stack) for seconds, stack in stacks if stack]
    return max(known)[1][::-1] if known else ()
