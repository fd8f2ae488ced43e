"""YAML in which every value knows where it was written.

Tags, anchors that expand without end and duplicate keys are refused; only plain values are constructed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import yaml

from magneton_dist.errors import ConfigError

MAX_BYTES = 1 << 20
MAX_VALUES = 10_000  # after aliases are expanded
MAX_DEPTH = 32

_YAML = "tag:yaml.org,2002:"
_SEQUENCE, _MAPPING, _MERGE = _YAML + "seq", _YAML + "map", _YAML + "merge"
_TEXTS = {_YAML + "str", _YAML + "timestamp"}  # a date is text here
_SCALARS = {_YAML + name for name in ("null", "bool", "int", "float")}

QUOTE = "put a text with { } in quotes"

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Node:
    """A value, the place it was written at (``file:line`` or ``--set ...``) and its dotted key."""

    value: Scalar | list[Node] | dict[str, Node]
    place: str
    key: str = ""
    text: str = ""  # a scalar as it was written

    @property
    def where(self) -> str:
        """``file:line: key``, as errors show it."""
        return f"{self.place}: {self.key}" if self.key else self.place

    def fail(self, what: str, do: str | None = None) -> ConfigError:
        """The error that `what` is wrong with this value."""
        return ConfigError(what, where=self.where, do=do)

    def mapping(self) -> dict[str, Node]:
        """The keys of a mapping; an empty value counts as an empty mapping."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.fail(f"must be a mapping of keys to values, not {self.shown()}")
        return self.value

    def items(self) -> list[Node]:
        """The items of a list."""
        if not isinstance(self.value, list):
            raise self.fail(f"must be a list, not {self.shown()}", "write [a, b]")
        return self.value

    def shown(self) -> str:
        """This value as an error shows it."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        if self.value is None:
            return "nothing"
        text = repr(self.value) if isinstance(self.value, str) else self.text
        return text if len(text) <= 60 else f"{text[:57]}..."

    def plain(self) -> object:
        """The value without its places; lists as tuples."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return tuple(node.plain() for node in self.value)
        return self.value


def closest(word: str, allowed: Iterable[str]) -> str:
    """What to do about a misspelt `word`: the likely one, and all that are allowed."""
    names = list(allowed)
    near = get_close_matches(word, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}allowed: {', '.join(names)}"


def read(path: Path) -> Node:
    """Read a YAML file.

    Raises:
        ConfigError: it cannot be read, is no YAML mapping, repeats a key, or expands beyond all measure.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ConfigError(f"larger than {MAX_BYTES} bytes", where=str(path), do="is it a configuration?")
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 text at byte {error.start}", where=str(path)) from error
    root = parse(text, str(path))
    if root.value is None:
        raise ConfigError("empty", where=str(path), do="give at least job: {script: train.py}")
    if not isinstance(root.value, dict):
        raise root.fail(f"must be a mapping of keys to values, not {root.shown()}")
    return root


def parse(text: str, name: str, key: str = "", numbered: bool = True) -> Node:
    """The YAML value `text`, placed at `name` (with lines when `numbered`); `key` is the key of the whole."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return Node(None, name, key)
        return _Builder(loader, name, numbered).build(root, key, 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        here = Node(None, f"{name}:{mark.line + 1}" if mark and numbered else name, key)
        raise here.fail(f"not YAML: {error.problem}", _advice(error, text)) from error
    except yaml.YAMLError as error:  # a character that YAML does not allow; its message has several lines
        raise Node(None, name, key).fail(f"not YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise Node(None, name, key).fail("nested too deeply") from error


def _advice(error: yaml.MarkedYAMLError, text: str) -> str | None:
    if "\\t" in str(error.problem):
        return "indent with spaces, not tabs"
    lines = text.splitlines()
    line = error.problem_mark.line if error.problem_mark else len(lines)
    return QUOTE if line < len(lines) and "{" in lines[line] else None


class _Builder:
    """Turns composed YAML nodes into ours."""

    def __init__(self, loader: yaml.SafeLoader, name: str, numbered: bool) -> None:
        self.loader = loader
        self.name = name
        self.numbered = numbered
        self.values = 0

    def build(self, node: yaml.Node, key: str, depth: int) -> Node:
        here = Node(None, self._place(node), key)
        self._count(here, depth)
        if isinstance(node, yaml.ScalarNode):
            return replace(here, value=self._scalar(node, here), text=node.value)
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQUENCE:
            items = [self.build(item, f"{key}[{i}]", depth + 1) for i, item in enumerate(node.value)]
            return replace(here, value=items)
        if isinstance(node, yaml.MappingNode) and node.tag == _MAPPING:
            return replace(here, value=self._children(node, key, depth))
        raise here.fail(f"tag {node.tag!r} is not allowed", "plain values only")

    def _count(self, here: Node, depth: int) -> None:
        self.values += 1
        if self.values > MAX_VALUES or depth > MAX_DEPTH:
            raise here.fail("expands beyond all measure", "write it without aliases")

    def _place(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}" if self.numbered else self.name

    def _scalar(self, node: yaml.ScalarNode, here: Node) -> Scalar:
        if node.tag in _TEXTS:
            return str(node.value)
        if node.tag not in _SCALARS:
            raise here.fail(f"tag {node.tag!r} is not allowed", "plain values only")
        try:
            value: Scalar = self.loader.construct_object(node)
        except (ValueError, LookupError) as error:  # what looks like a number to YAML and is none
            raise here.fail(f"cannot read {node.value!r}", "put it in quotes") from error
        return value

    def _children(self, mapping: yaml.MappingNode, prefix: str, depth: int) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for name, value in mapping.value:
            place = self._place(name)
            if not isinstance(name, yaml.ScalarNode):
                raise ConfigError("a key must be a word", where=place)
            if name.tag == _MERGE:
                self._count(Node(None, place, prefix), depth)
                for source in reversed(value.value if isinstance(value, yaml.SequenceNode) else [value]):
                    if not isinstance(source, yaml.MappingNode):
                        raise ConfigError("<< needs a mapping", where=place)
                    merged.update(self._children(source, prefix, depth + 1))
                continue
            key = f"{prefix}.{name.value}" if prefix else name.value
            if name.value in own:
                raise ConfigError(f"given twice, first at {own[name.value].place}", where=f"{place}: {key}")
            # An empty value or a block starts elsewhere than its key; the key's line is what a reader seeks.
            own[name.value] = replace(self.build(value, key, depth + 1), place=place)
        return merged | own
