"""``--set key=value`` on top of a configuration file."""

from __future__ import annotations

import re
from dataclasses import replace

from magneton_dist.config.document import Node, closest, parse
from magneton_dist.errors import ConfigError

_SET = re.compile(r"(?P<key>[^=\s]+?)(?P<extend>\+?)=(?P<value>.*)", re.DOTALL)
_STEP = re.compile(r"(?P<name>[^.\[\]]+)(?P<index>(\[\d{1,6}\])*)(\.(?=.)|$)")

Path = list[str | int]


def override(root: Node, text: str) -> Node:
    """`root` with ``a.b=value`` set, ``a.b[1]=value`` replaced, or ``a.b+=value`` extended.

    The value is YAML. ``+=`` appends to a list and merges into a mapping; in a variant that does not give the
    list itself it adds to what the variant extends the job's list by.

    Raises:
        ConfigError: `text` is no assignment, or names a place that cannot hold a value.
    """
    found = _SET.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{text!r} must read key=value", where="--set", do="such as --set repeats=6")
    path = _path(found["key"])
    value = parse(found["value"], "--set", found["key"], numbered=False)
    if path[0] == "variants" and len(path) > 1:
        known = _at(root, path[:1])
        names = list(known.mapping()) if known else []
        if path[1] not in names:
            raise value.fail(f"there is no variant {path[1]!r}", closest(str(path[1]), names))
    if not found["extend"]:
        return _put(root, path, value)
    if not isinstance(value.value, dict | list):
        raise value.fail(f"cannot extend by {value.shown()}", "lists take +=[a, b], mappings +={a: b}")
    if path[0] == "variants" and _at(root, path) is None:
        path[-1] = f"{path[-1]}+"
    old = _at(root, path)
    return _put(root, path, value if old is None or old.value is None else _extended(old, value))


def _path(key: str) -> Path:
    path: Path = []
    position = 0
    while position < len(key):
        step = _STEP.match(key, position)
        if step is None:
            raise ConfigError(f"{key!r} is no key", where="--set", do="such as variants.join.args[1]")
        path.append(step["name"])
        path += [int(index) for index in re.findall(r"\d+", step["index"])]
        position = step.end()
    return path


def _at(node: Node | None, path: Path) -> Node | None:
    for step in path:
        if isinstance(step, str) and node and isinstance(node.value, dict):
            node = node.value.get(step)
        elif isinstance(step, int) and node and isinstance(node.value, list) and step < len(node.value):
            node = node.value[step]
        else:
            return None
    return node


def _put(node: Node, path: Path, new: Node) -> Node:
    if not path:
        return new
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        if not isinstance(node.value, list) or step >= len(node.value):
            raise new.fail(f"there is no item {step}", f"{node.key} is {node.shown()}, at {node.place}")
        items = list(node.value)
        items[step] = _put(items[step], rest, new)
        return replace(node, value=items)
    if node.value is not None and not isinstance(node.value, dict):
        raise new.fail(f"{node.key} has no keys", f"it is {node.shown()}, at {node.place}")
    children = node.mapping()
    key = f"{node.key}.{step}" if node.key else step
    child = children.get(step, Node(None, new.place, key))
    return replace(node, value={**children, step: _put(child, rest, new)})


def _extended(old: Node, new: Node) -> Node:
    if isinstance(new.value, dict) and isinstance(old.value, dict):
        return replace(old, value=old.value | new.value)
    if isinstance(new.value, list) and isinstance(old.value, list):
        return replace(old, value=old.value + new.value)
    raise new.fail(f"cannot extend {old.shown()} by {new.shown()}", f"it is at {old.place}")
