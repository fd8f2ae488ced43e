"""A configuration file, with ``--set`` on top, as an `AuditConfig`; every error says file, line and key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import ValidationError

from magneton_dist.config.document import QUOTE, Node, closest, read
from magneton_dist.config.models import AuditConfig, Job, Model
from magneton_dist.config.overrides import override
from magneton_dist.config.placeholders import PLACEHOLDERS, expand, literal, placeholders

METERS = ("auto", "nvml", "rapl", "hwmon", "pmd2", "pmd-usb", "zeus", "null")
ON_PORTS = ("pmd2", "pmd-usb")  # may name their serial port: pmd2:/dev/ttyACM0
MODELLED = "modelled:"
PROFILES = Path(__file__).parents[1] / "meters" / "profiles"
ALONE = "job"  # the variant of a file that has none
WHAT_RUNS = ("script", "module", "command")

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = "MAGNETON_DIST_"


def load(path: str | Path, overrides: Sequence[str] = ()) -> AuditConfig:
    """The audit that the YAML file at `path` describes, with `overrides` (``key=value``) on top.

    Variants come out as complete jobs; `cwd` and `runs` as absolute folders.

    Raises:
        ConfigError: ``file:line: key: what (what to do)``, for the first thing that is wrong.
    """
    path = Path(path)
    root = read(path)
    for text in overrides:
        root = override(root, text)
    top = dict(_known(root, AuditConfig, extra=("job",)).mapping())
    job = _known(top.pop("job", Node(None, root.place, "job")), Job)
    top["variants"] = _variants(job, top.get("variants"))
    top.setdefault("name", Node(path.stem, root.place, "name", path.stem))
    names = list(top["variants"].mapping())
    top.setdefault("baseline", Node(names[0], root.place, "baseline", names[0]))
    tree = replace(root, value=top)
    config = _validate(tree)
    _check_names(config, tree)
    _check_meter(config, top.get("energy", root))
    jobs = {}
    for name, node in top["variants"].mapping().items():
        _check_job(config.variants[name], node)
        jobs[name] = _resolved(config.variants[name], node)
    return config.model_copy(update={"variants": jobs, "runs": Path.cwd() / config.runs})


def _known(node: Node, model: type[Model], extra: tuple[str, ...] = (), extends: bool = False) -> Node:
    """`node` with only the keys of `model` (``key+`` too when it `extends`), texts as they were written."""
    fields = model.model_fields
    children = {}
    for key, child in node.mapping().items():
        name = key.removesuffix("+") if extends else key
        if name in extra:
            children[key] = child
            continue
        if name not in fields:
            raise child.fail("unknown key", closest(key, [*fields, *extra]))
        annotation = fields[name].annotation
        if key != name and not {list, tuple, dict} & _origins(annotation):
            raise child.fail("nothing to extend: it holds one value", f"write {name}: ...")
        children[key] = _typed(child, annotation, extends)
    return replace(node, value=children)


def _typed(node: Node, annotation: Any, extends: bool = False) -> Node:
    """`node` with what pydantic cannot know done: lists and mappings told apart, numbers as texts."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return _known(node, annotation, extends=extends)
    origins = _origins(annotation)
    if node.value is None and NoneType in origins:
        return node
    if tuple in origins:
        return replace(node, value=[_text(item) for item in ([] if node.value is None else node.items())])
    if annotation == dict[str, str]:
        return replace(node, value={key: _text(value) for key, value in node.mapping().items()})
    if origins & {str, Path}:
        return _text(node if node.value is not None else replace(node, value=node.text))
    return node


def _origins(annotation: Any) -> set[Any]:
    """The types in an annotation: ``tuple[str, ...] | None`` has tuple and NoneType."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return set().union(*(_origins(part) for part in get_args(annotation)))
    return {origin or annotation}


def _text(node: Node) -> Node:
    """Numbers and yes/no stand for what was written, so that ``0.10`` or ``010`` reaches the job as such."""
    if isinstance(node.value, dict | list):
        raise node.fail(f"must be text, not {node.shown()}", QUOTE if isinstance(node.value, dict) else None)
    return replace(node, value=node.text) if isinstance(node.value, bool | int | float) else node


def _variants(job: Node, given: Node | None) -> Node:
    """Every variant as a complete job."""
    if given is None or given.value is None:
        return Node({ALONE: job}, job.place, "variants")
    if not given.mapping():
        raise given.fail("no variants", "name at least one, or leave the key out")
    jobs = {}
    for name, node in given.mapping().items():
        variant = _known(node, Job, extends=True)
        inherited = dict(job.mapping())
        if variant.mapping().keys() & set(WHAT_RUNS):  # it replaces what the job runs, in whichever way
            inherited = {key: value for key, value in inherited.items() if key not in WHAT_RUNS}
        jobs[name] = _merged(replace(job, value=inherited), variant)
    return replace(given, value=jobs)


def _merged(base: Node, over: Node) -> Node:
    """`over` on top of `base`: mappings key by key, null takes a key away, ``key+`` extends a list."""
    children = dict(base.mapping())
    for key, node in sorted(over.mapping().items(), key=lambda item: item[0].endswith("+")):
        name = key.removesuffix("+")
        old = children.get(name)
        if isinstance(node.value, dict):
            children[name] = _merged(old or replace(node, value={}), node)
        elif key != name:
            children[name] = replace(node, value=(old.items() if old else []) + node.items())
        elif node.value is None:
            children.pop(name, None)
        else:
            children[name] = node
    return replace(over, value=children)


def _validate(tree: Node) -> AuditConfig:
    try:
        return AuditConfig.model_validate(tree.plain(), strict=True)
    except ValidationError as error:
        wrong: dict[str, tuple[Node, dict[str, None]]] = {}
        for detail in error.errors(include_url=False):
            node = _written(tree, detail["loc"])
            said = detail["msg"].removeprefix("Input should be ").replace("an instance of Path", "a folder")
            wrong.setdefault(node.where, (node, {}))[1][said] = None
        node, allowed = next(iter(wrong.values()))
        more = f"; {len(wrong) - 1} more wrong" if len(wrong) > 1 else ""
        raise node.fail(f"must be {' or '.join(allowed)}, not {node.shown()}{more}") from error


def _written(tree: Node, location: Iterable[str | int]) -> Node:
    """The value that pydantic means; the last part of a location may name a type and not a key."""
    node = tree
    for step in location:
        if isinstance(node.value, dict) and step in node.value:
            node = node.value[str(step)]
        elif isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
        else:
            break
    return node


def _check_names(config: AuditConfig, tree: Node) -> None:
    top = tree.mapping()
    for name, node in {config.name: top["name"], **top["variants"].mapping()}.items():
        if not _FOLDER.fullmatch(name):
            raise node.fail(f"{name!r} cannot name a folder", "letters, digits, - and _, at most 64")
    if config.baseline not in config.variants:
        near = closest(config.baseline, config.variants)
        raise top["baseline"].fail(f"there is no variant {config.baseline!r}", near)


def _check_meter(config: AuditConfig, energy: Node) -> None:
    meter = config.energy.meter
    node = energy.mapping().get("meter", energy)
    if config.energy.profile is not None:
        _check_profile(config.energy.profile, energy.mapping()["profile"])
    if meter.startswith(MODELLED):
        _check_profile(meter.removeprefix(MODELLED), node)
        if config.energy.profile is not None:
            raise node.fail("two profiles: the meter's and energy.profile", "leave one out")
    elif meter not in METERS and meter.partition(":")[0] not in ON_PORTS:
        raise node.fail(f"there is no meter {meter!r}", closest(meter, [*METERS, MODELLED + "PROFILE"]))


def _check_profile(profile: str, node: Node) -> None:
    known = sorted(path.stem for path in PROFILES.glob("*.yaml"))
    if profile not in known and not _exists(Path(profile).is_file):
        raise node.fail(f"there is no profile {profile!r}", f"a file, or {closest(profile, known)}")


def _check_job(job: Job, node: Node) -> None:
    keys = node.mapping()
    given = [name for name in WHAT_RUNS if getattr(job, name) is not None]
    if not given:
        raise node.fail("nothing to run", "give script, module or command")
    if len(given) > 1:
        first, second = keys[given[0]], keys[given[1]]
        raise second.fail(f"cannot stand beside {given[0]}, at {first.place}", "give one of them")
    if not getattr(job, given[0]):
        raise keys[given[0]].fail("empty")
    if job.command is not None:
        _check_command(keys)
    for name, value in keys["env"].mapping().items() if "env" in keys else ():
        if not _ENVIRONMENT.fullmatch(name):
            raise value.fail("cannot name an environment variable", "letters, digits and _")
        if name.startswith(_OURS):
            raise value.fail("is set by the audit itself", "leave it out")
    for text in _texts(node):
        _check_text(job, text)


def _check_command(keys: dict[str, Node]) -> None:
    for name in ("python", "torchrun"):
        node = keys.get(name)
        for unused in (node.mapping().values() if isinstance(node.value, dict) else [node]) if node else ():
            if unused.key.rpartition(".")[2] not in ("nproc_per_node", "nnodes"):
                raise unused.fail("has no effect on a command", "write it into the command itself")


def _texts(job: Node) -> Iterable[Node]:
    """The values of a job in which placeholders are filled in."""
    for key, node in job.mapping().items():
        if key in ("args", "command"):
            yield from node.items()
        elif key == "env":
            yield from node.mapping().values()
        elif key == "cwd":
            yield node


def _check_text(job: Job, node: Node) -> None:
    text = str(node.value)
    if "\0" in text:
        raise node.fail("holds a NUL character")
    try:
        used = placeholders(text)
    except ValueError as error:
        raise node.fail(str(error), "double a literal brace: {{ }}") from error
    for name in used:
        if name not in PLACEHOLDERS:
            near = closest(name, PLACEHOLDERS)
            raise node.fail(f"there is no placeholder {{{name}}}", f"{near}; {{{{ is a literal brace")
        if name == "seed" and job.seed is None:
            raise node.fail("{seed} without a seed", "give seed: in the job or the variant")


def _resolved(job: Job, node: Node) -> Job:
    """`job` with an absolute `cwd`, its script known to exist."""
    keys = node.mapping()
    start = Path.cwd()
    per_run = placeholders(job.cwd or "")
    folder = start if per_run else start / expand(job.cwd or "", {})
    if not _exists(folder.is_dir):
        raise keys["cwd"].fail(f"there is no folder {job.cwd!r}")
    cwd = job.cwd if per_run and job.cwd else literal(str(folder))
    if per_run and not cwd.startswith("{run_dir}"):
        cwd = f"{literal(str(start))}/{cwd}"
    if job.script is None:
        return job.model_copy(update={"cwd": cwd})
    script = folder / job.script
    if not _exists(script.is_file):
        raise keys["script"].fail(f"there is no file {job.script!r}", f"looked in {folder}")
    # In a folder made for each run a relative script would not be found.
    return job.model_copy(update={"cwd": cwd, "script": str(script) if per_run else job.script})


def _exists(test: Callable[[], bool]) -> bool:
    try:
        return test()
    except OSError:  # a name too long, a folder closed to us: there is nothing to run either
        return False
