"""Operator graphs without tensors: values have tags, equal tags are equal numbers.

`transformer` makes graphs of the size and shape of large language models, in a plain and in a fused style
that compute the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np

from magneton_dist.matching.arrays import Ragged
from magneton_dist.matching.graph import FLOAT, MatchGraph
from magneton_dist.matching.recorded import PHASES

Out = tuple[str, int]  # tag and number of elements of a result


class Builder:
    """Builds one side of a comparison. `private` tags are found on this side only."""

    def __init__(self, side: str) -> None:
        self.side = side
        self.phase = "forward"
        self.names: list[str] = []
        self.phases: list[str] = []
        self.inputs: list[list[int]] = []
        self.outputs: list[list[int]] = []
        self.tags: list[str] = []
        self.numel: list[int] = []
        self.contents: list[str] = []  # equal contents have equal bits
        self.slots: list[str | None] = []
        self._private = 0

    def private(self) -> str:
        self._private += 1
        return f"{self.side}.{self._private}"

    def value(self, tag: str, numel: int = 4096, slot: str | None = None, content: str | None = None) -> int:
        self.tags.append(tag)
        self.numel.append(numel)
        self.contents.append(tag if content is None else content)
        self.slots.append(slot)
        return len(self.tags) - 1

    def parameter(self, name: str, numel: int) -> int:
        return self.value(f"w.{name}", numel, slot=name)

    def op(self, name: str, inputs: Sequence[int], outputs: Sequence[Out]) -> list[int]:
        self.names.append(name)
        self.phases.append(self.phase)
        self.inputs.append(list(inputs))
        self.outputs.append([self.value(tag, numel) for tag, numel in outputs])
        return self.outputs[-1]

    def one(self, name: str, inputs: Sequence[int], tag: str | None = None, numel: int | None = None) -> int:
        """An operator with one result; by default a private one of the size of the first input."""
        numel = self.numel[inputs[0]] if numel is None else numel
        return self.op(name, inputs, [(tag or self.private(), numel)])[0]

    def view(self, value: int, name: str = "view") -> int:
        """The same bits again."""
        out = self.one(name, [value], self.tags[value])
        self.contents[out] = self.contents[value]
        return out

    def graph(self, noise: float = 0.0, seed: int = 0) -> MatchGraph:
        """As the matcher sees it, every feature off by a relative `noise`."""
        rng = np.random.default_rng(seed)
        known: dict[str, np.ndarray] = {}
        for tag, numel in zip(self.tags, self.numel, strict=True):
            if tag not in known:
                known[tag] = features_of(tag, numel) * (1 + noise * rng.normal(size=5))
        # unequal rounding on the two sides: bits are equal within a side only
        bits = [crc32(f"{content}/{self.side if noise else ''}".encode()) for content in self.contents]
        n = len(self.tags)
        return MatchGraph(
            names=list(self.names),
            phases=np.array([PHASES.index(phase) for phase in self.phases], np.int64),
            inputs=Ragged.of(self.inputs),
            outputs=Ragged.of(self.outputs),
            kind=np.full(n, FLOAT, np.int64),
            numel=np.array(self.numel, np.int64),
            features=np.array([known[tag] for tag in self.tags]).reshape(n, 5),
            checksum=np.array(bits, np.int64),
            anchor=np.array(self.numel) >= 8,
            slot=np.array([-1 if slot is None else crc32(slot.encode()) for slot in self.slots], np.int64),
        )


# Weights that the fused style keeps in one: their gradients and optimizer states are in one as well.
PARTS = {".qkv": (".q", ".k", ".v"), ".gate_up": (".gate", ".up")}


def features_of(tag: str, numel: int) -> np.ndarray:
    """Features of a value: drawn from its tag, or those of its parts put together."""
    for whole, parts in PARTS.items():
        if tag.endswith(whole):
            each = numel // len(parts)
            drawn = [features_of(tag.removesuffix(whole) + part, each) for part in parts]
            l2 = np.array([f[0] for f in drawn])
            l1 = np.array([f[1] for f in drawn]) * l2 * np.sqrt(each)
            l4 = np.array([f[2] for f in drawn]) * l2
            total = np.array([f[3] for f in drawn]) * l1
            norm = np.sqrt((l2**2).sum())
            mean = l1.sum() / (norm * np.sqrt(numel))
            return np.array([norm, mean, (l4**4).sum() ** 0.25 / norm, total.sum() / l1.sum(), 0.0])
    of_tag = np.random.default_rng(crc32(tag.encode()))
    return np.array([np.exp(2 * of_tag.normal()), *of_tag.uniform(0.1, 0.9, 2), of_tag.normal() / 10, 0.0])


WIDTH, TOKENS, HEADS = 4096, 128, 8
ACTIVATION = WIDTH * TOKENS
WEIGHT = WIDTH * WIDTH


def transformer(
    side: str, style: str, layers: int, training: bool = False, optimizer: str = "loop", names: bool = True
) -> Builder:
    """A decoder with rotary attention and gated feed-forward layers, tensor parallel.

    Args:
        side: name of the side.
        style: "plain": every norm, rotation and softmax in pieces, q, k and v by themselves; or "fused".
        layers: how many.
        training: with backward pass and optimizer.
        optimizer: "loop" over parameters, or "fused": one call for a hundred of them.
        names: parameters have names.
    """
    b = Builder(side)
    make = _Decoder(b, style == "fused", names)
    logits = make.forward(layers)
    if training:
        loss = b.one("cross_entropy", [logits], "loss", 1)
        gradients = _backward(b, loss)
        _optimizer(b, [(p, gradients[p]) for p in make.parameters if p in gradients], optimizer)
    return b


class _Decoder:
    def __init__(self, b: Builder, fused: bool, names: bool) -> None:
        self.b, self.fused, self.names = b, fused, names
        self.parameters: list[int] = []

    def parameter(self, name: str, numel: int) -> int:
        parameter = self.b.value(f"w.{name}", numel, slot=name if self.names else None)
        self.parameters.append(parameter)
        return parameter

    def forward(self, layers: int) -> int:
        b = self.b
        ids = b.value("ids", TOKENS)
        x = b.one("embedding", [ids, self.parameter("embedding", WEIGHT)], "x", ACTIVATION)
        angles = b.one("arange", [ids], f"ids.{b.side}", TOKENS * 64)
        for layer in range(layers):
            x = self.attention(f"{layer}", x, angles)
            x = self.feed_forward(f"{layer}", x)
        x = self.norm("last", x)
        return b.one("mm", [x, self.parameter("head", WEIGHT)], "logits", TOKENS * 1000)

    def norm(self, at: str, x: int) -> int:
        b, weight = self.b, self.parameter(f"{at}.norm", WIDTH)
        if self.fused:
            return b.one("rms_norm", [x, weight], f"{at}.normed", ACTIVATION)
        wide = b.view(x, "_to_copy")
        mean = b.one("mean", [b.one("pow", [wide])], None, TOKENS)
        scale = b.one("rsqrt", [b.one("add", [mean])])
        return b.one("mul", [b.view(b.one("mul", [wide, scale])), weight], f"{at}.normed", ACTIVATION)

    def linear(self, at: str, x: int, tag: str | None = None) -> int:
        b = self.b
        weight = self.parameter(at, WEIGHT)
        if self.fused:
            return b.one("mm", [x, weight], tag or at, ACTIVATION)
        product = b.one("mm", [b.view(x), b.view(weight, "t")], tag or at, ACTIVATION)
        return b.view(product)

    def rotated(self, at: str, x: int, angles: int) -> int:
        b = self.b
        halves = [b.one("slice", [x], None, ACTIVATION // 2) for _ in range(2)]
        turned = b.one("cat", [b.one("neg", [halves[1]]), halves[0]], None, ACTIVATION)
        parts = [b.one("mul", [x, b.view(angles)]), b.one("mul", [turned, b.view(angles)])]
        return b.one("add", parts, f"{at}.rotated")

    def attention(self, at: str, x: int, angles: int) -> int:
        b = self.b
        y = self.norm(f"{at}.attention", x)
        if self.fused:
            qkv = b.one("mm", [y, self.parameter(f"{at}.qkv", 3 * WEIGHT)], None, 3 * ACTIVATION)
            q, k, v = b.op("split", [qkv], [(f"{at}.{n}", ACTIVATION) for n in "qkv"])
            q, k = b.op("rotary", [q, k, angles], [(f"{at}.{n}.rotated", ACTIVATION) for n in "qk"])
            out, _ = b.op(
                "flash_attention", [q, k, v], [(f"{at}.attended", ACTIVATION), (b.private(), TOKENS * HEADS)]
            )
        else:
            q, k, v = (b.view(self.linear(f"{at}.{n}", y), "transpose") for n in "qkv")
            q, k = self.rotated(f"{at}.q", q, angles), self.rotated(f"{at}.k", k, angles)
            scores = b.one("bmm", [q, b.view(k, "transpose")], None, TOKENS * TOKENS * HEADS)
            probabilities = b.one("softmax", [b.one("add", [b.one("mul", [scores])])])
            out = b.one("bmm", [probabilities, b.view(v, "clone")], f"{at}.attended", ACTIVATION)
            out = b.view(b.view(out, "transpose"), "clone")
        return self.residual(f"{at}.attention", x, self.linear(f"{at}.out", out))

    def feed_forward(self, at: str, x: int) -> int:
        b = self.b
        y = self.norm(f"{at}.feed", x)
        if self.fused:
            both = b.one("mm", [y, self.parameter(f"{at}.gate_up", 2 * WEIGHT)], None, 2 * ACTIVATION)
            hidden = b.one("silu_and_mul", [both], f"{at}.hidden", ACTIVATION)
        else:
            gate = b.one("silu", [self.linear(f"{at}.gate", y)], f"{at}.gated")
            hidden = b.one("mul", [gate, self.linear(f"{at}.up", y)], f"{at}.hidden")
        return self.residual(f"{at}.feed", x, self.linear(f"{at}.down", hidden))

    def residual(self, at: str, x: int, y: int) -> int:
        b = self.b
        y = b.view(b.one("all_reduce", [y], f"{at}.reduced"), "wait_tensor")
        return b.one("add", [x, y], f"{at}.sum")


def _backward(b: Builder, loss: int) -> dict[int, int]:
    """Gradients of all values by value: an operator for each one, and an addition where a value is read twice."""
    forward = len(b.names)
    reads = np.bincount([v for inputs in b.inputs for v in inputs], minlength=len(b.tags))
    b.phase = "backward"
    gradient = {loss: b.op("ones_like", [], [("g.loss", 1)])[0]}
    added: dict[int, int] = {}

    def give(value: int, mine: int) -> None:
        if value not in gradient:
            gradient[value], added[value] = mine, 1
            return
        added[value] += 1
        tag = f"g.{b.tags[value]}" if added[value] == reads[value] else b.private()
        gradient[value] = b.one("add", [gradient[value], mine], tag)

    def tag_of(value: int) -> str:
        return f"g.{b.tags[value]}" if reads[value] == 1 else b.private()

    for op in range(forward - 1, -1, -1):
        incoming = [gradient[v] for v in b.outputs[op] if v in gradient]
        inputs = [v for v in b.inputs[op] if not b.tags[v].startswith("ids")]
        if not incoming or not inputs:
            continue
        if b.contents[inputs[0]] == b.contents[b.outputs[op][0]]:
            mine = b.view(incoming[0], b.names[op])
            b.tags[mine] = tag_of(inputs[0])
            give(inputs[0], mine)
        elif b.names[op] in ("mm", "bmm"):
            for value, other in zip(inputs, inputs[::-1], strict=True):
                give(value, b.one(b.names[op], [incoming[0], other], tag_of(value), b.numel[value]))
        else:
            saved = [] if b.names[op] in ("add", "all_reduce", "split", "slice", "cat") else b.inputs[op]
            results = b.op(f"{b.names[op]}_backward", incoming + saved, [(tag_of(v), b.numel[v]) for v in inputs])
            for value, mine in zip(inputs, results, strict=True):
                give(value, mine)
    return gradient


def _optimizer(b: Builder, pairs: list[tuple[int, int]], kind: str) -> None:
    b.phase = "optimizer"

    def states(parameter: int) -> list[int]:
        tag, numel = b.tags[parameter], b.numel[parameter]
        return [b.value(f"{state}.{tag}", numel) for state in ("mean", "square")]

    if kind == "loop":
        for parameter, gradient in pairs:
            tag = b.tags[parameter]
            mean, square = states(parameter)
            mean = b.one("lerp_", [mean, gradient], f"new.mean.{tag}")
            square = b.one("addcmul_", [b.one("mul_", [square]), gradient], f"new.square.{tag}")
            root = b.one("add_", [b.one("div", [b.one("sqrt", [square])])])
            b.one("addcdiv_", [parameter, mean, root], f"new.{tag}")
        return
    for start in range(0, len(pairs), 100):
        some = pairs[start : start + 100]
        of_each = [(p, g, *states(p)) for p, g in some]
        lists = [value for column in zip(*of_each, strict=True) for value in column]
        made = [(f"{new}{b.tags[p]}", b.numel[p]) for new in ("new.", "new.mean.", "new.square.") for p, _ in some]
        b.op("_fused_adamw_", lists, made)


class Random:
    """A random graph of abstract operators, built on either side with rewrites that keep what it computes.

    `build` gives the side's values with the tags of the abstract ones; what a rewrite adds is private.
    """

    def __init__(self, seed: int, duplicates: float = 0.0) -> None:
        rng = np.random.default_rng(seed)
        self.seed = seed
        self.inputs = [f"in{i}" for i in range(int(rng.integers(1, 4)))]
        self.operators: list[tuple[list[str], list[str]]] = []
        self.equal_to: dict[str, str] = {}  # of some results: an earlier value with the same numbers
        values = list(self.inputs)
        for number in range(int(rng.integers(4, 80))):
            reach = rng.exponential(4, size=int(rng.integers(1, 4))).astype(int)
            read = [values[max(0, len(values) - 1 - step)] for step in reach]
            made = [f"v{number}.{i}" for i in range(1 + int(rng.random() < 0.15))]
            if rng.random() < duplicates:
                other = values[int(rng.integers(len(values)))]
                self.equal_to[made[0]] = self.equal_to.get(other, other)
            self.operators.append((read, made))
            values += made

    def build(self, side: str, rewrites: dict[int, str] | None = None) -> tuple[Builder, dict[int, str]]:
        """The graph of one side.

        Args:
            side: its name.
            rewrites: number of an operator -> "split" (two operators with a private value in between), "clone"
                (its input is copied first), or "hide" (its results are private: another way to compute).

        Returns:
            the graph, and the abstract value of each of its values.
        """
        rewrites = rewrites or {}
        b = Builder(side)
        place = {name: b.value(name) for name in self.inputs}
        names = {value: name for name, value in place.items()}
        for number, (read, made) in enumerate(self.operators):
            inputs = [place[name] for name in read]
            rewrite = rewrites.get(number, "")
            if rewrite == "clone":
                names[copy := b.view(inputs[0], "clone")] = read[0]
                inputs[0] = copy
            if rewrite == "split":
                inputs = [b.one("half", inputs), *inputs[:1]]
            tags = [b.private() if rewrite == "hide" else self.equal_to.get(name, name) for name in made]
            for name, value in zip(made, b.op("f", inputs, [(tag, 4096) for tag in tags]), strict=True):
                place[name] = value
                names[value] = name
        return b, names

    def some_rewrites(self, side: str) -> dict[int, str]:
        """A third of the operators, each with some rewrite."""
        rng = np.random.default_rng([self.seed, crc32(side.encode())])
        kinds = ("split", "clone", "hide")
        return {i: kinds[rng.integers(3)] for i in range(len(self.operators)) if rng.random() < 1 / 3}
