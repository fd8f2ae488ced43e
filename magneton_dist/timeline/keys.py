"""Which calls on different ranks are one collective.

In order of trust:

- ``sequence``: the group's sequence number, where every rank's numbers agree. Gloo's send and receive bump
  it on their two ranks only, so a group with point-to-point calls is believed only if no number is missing.
- ``order``: the n-th call of the same operation in the group, where no rank's record has a hole.
- ``shape``: the n-th call of the same operation and size, where the order alone pairs different sizes.
- ``pair``: the n-th message from one rank to another, for send and receive.
- ``none``: none of these holds, with the reason.
"""

from __future__ import annotations

import polars as pl

CONFIDENCE = {"sequence": 1.0, "order": 0.8, "pair": 0.8, "shape": 0.5, "none": 0.0}

# how a rank waits in an operation: for all, for the root, as the root for all, for the sender
KINDS = {
    "broadcast": "from_root", "broadcast_oop": "from_root", "scatter": "from_root",
    "reduce": "to_root", "reduce_oop": "to_root", "gather": "to_root",
    "send": "send", "recv": "recv", "recv_any_source": "recv",
}  # fmt: skip
# operations whose payload has one size on all ranks
SAME_SIZE = ("allreduce", "allreduce_coalesced", "broadcast", "broadcast_oop", "reduce", "reduce_oop")

GROUP = ["group", "group_size"]


def match_calls(calls: pl.DataFrame) -> pl.DataFrame:
    """Say which calls belong together.

    Args:
        calls: calls of all ranks (columns of `arrivals.CALLS`).

    Returns:
        The same rows, sorted by rank and call_id, with `kind` (symmetric, from_root, to_root, send, recv),
        `matched` (see the module), `unmatched` (why not, else null), `expected` (ranks that belong to the
        call) and `key` (equal for the calls of one collective; null where `matched` is none).
    """
    calls = calls.sort("rank", "call_id").with_columns(
        pl.col("op").str.strip_chars("_").replace_strict(KINDS, default="symmetric").alias("kind"),
        pl.col("op").str.strip_chars("_").is_in(SAME_SIZE).alias("same_size"),
        # calls are numbered from 0 without gaps
        (pl.col("call_id") != pl.int_range(pl.len()).over("rank")).any().over("rank").alias("holed"),
    )
    paired = pl.col("kind").is_in(["send", "recv"])
    matched = pl.concat([_collectives(calls), _messages(calls.filter(paired))], how="diagonal")
    name = ["matched", *GROUP, "key_op", "key_a", "key_b", "nth"]
    key = pl.when(pl.col("matched") != "none").then(pl.col("row").first().over(name))
    return (
        matched.sort("rank", "call_id")
        .with_row_index("row")
        .with_columns(key.cast(pl.Int64).alias("key"))
        .drop("row", "key_op", "key_a", "key_b", "nth", "same_size", "holed")
    )


def _collectives(calls: pl.DataFrame) -> pl.DataFrame:
    """Key the calls of whole groups by sequence, order or shape; messages are left out."""
    message = pl.col("kind").is_in(["send", "recv"])
    calls = calls.with_columns(message.any().over(GROUP).alias("messages")).filter(~message)
    calls = calls.with_columns(
        pl.int_range(pl.len()).over(["rank", *GROUP, "op"]).alias("by_order"),
        pl.int_range(pl.len()).over(["rank", *GROUP, "op", "bytes"]).alias("by_shape"),
    )
    verdict = _sequences_agree(calls).join(_orders_agree(calls), on=GROUP, nulls_equal=True)
    calls = calls.join(verdict, on=GROUP, how="left", nulls_equal=True)
    chosen = (
        pl.when("sequences_agree").then(pl.lit("sequence"))
        .when("holed_group").then(pl.lit("none"))
        .when("orders_agree").then(pl.lit("order"))
        .otherwise(pl.lit("shape"))
    )  # fmt: skip
    calls = calls.with_columns(chosen.alias("matched"))
    by_sequence, by_shape = pl.col("matched") == "sequence", pl.col("matched") == "shape"
    return calls.with_columns(
        pl.when(pl.col("matched") == "none")
        .then(pl.lit("no trusted sequence, and a rank's record has holes, so calls cannot be counted"))
        .alias("unmatched"),
        pl.when(~by_sequence).then("op").alias("key_op"),
        pl.when(by_shape).then("bytes").alias("key_a"),
        pl.lit(None, pl.Int64).alias("key_b"),
        pl.when(by_sequence).then("seq").when(by_shape).then("by_shape").otherwise("by_order").alias("nth"),
        pl.col("group_size").alias("expected"),
    ).drop("messages", "by_order", "by_shape", "sequences_agree", "orders_agree", "holed_group")


def _one_size() -> pl.Expr:
    """Whether the calls of a key agree on their size where they must and where it is known."""
    return pl.col("bytes").filter(pl.col("same_size")).drop_nulls().n_unique() <= 1


def _sequences_agree(calls: pl.DataFrame) -> pl.DataFrame:
    """Per group, whether its sequence numbers pair the same operations on all ranks."""
    keys = calls.group_by([*GROUP, "seq"]).agg(
        (
            pl.col("seq").is_not_null().all()
            & (pl.col("op").n_unique() == 1)
            & (pl.col("rank").n_unique() == pl.len())
            & _one_size()
        ).alias("sound"),
        pl.col("rank").n_unique().alias("ranks"),
    )
    seq = pl.col("seq")
    spans = calls.group_by([*GROUP, "rank"]).agg(seq.min().alias("low"), seq.max().alias("high"))
    shared = spans.group_by(GROUP).agg(pl.col("low").max(), pl.col("high").min(), pl.len().alias("present"))
    messages = calls.group_by(GROUP).agg(pl.col("messages").any())
    keys = keys.join(shared, on=GROUP, nulls_equal=True)
    inside = pl.col("seq").is_between("low", "high")
    whole = keys.group_by(GROUP).agg(
        pl.col("sound").all(), (~inside | (pl.col("ranks") == pl.col("present"))).all().alias("complete")
    )
    agree = (pl.col("sound") & (~pl.col("messages") | pl.col("complete"))).fill_null(False)
    return whole.join(messages, on=GROUP, nulls_equal=True).select(*GROUP, agree.alias("sequences_agree"))


def _orders_agree(calls: pl.DataFrame) -> pl.DataFrame:
    """Per group, whether the n-th calls of an operation agree on their size, and if a record has holes."""
    keys = calls.group_by([*GROUP, "op", "by_order"]).agg(_one_size().alias("sized"), pl.col("holed").any())
    return keys.group_by(GROUP).agg(
        pl.col("sized").all().alias("orders_agree"), pl.col("holed").any().alias("holed_group")
    )


def _messages(calls: pl.DataFrame) -> pl.DataFrame:
    """Key sends with their receives: the n-th from one group rank to another."""
    sends = pl.col("kind") == "send"
    calls = calls.with_columns(
        pl.when(sends).then("group_rank").otherwise("root").cast(pl.Int64).alias("key_a"),
        pl.when(sends).then("root").otherwise("group_rank").cast(pl.Int64).alias("key_b"),
    )
    nth = pl.int_range(pl.len()).over(["rank", *GROUP, "kind", "key_a", "key_b"])
    unknown = pl.col("key_a").is_null() | pl.col("key_b").is_null()
    holed = pl.col("holed").any().over(GROUP)
    return calls.with_columns(
        pl.when(unknown | holed).then(pl.lit("none")).otherwise(pl.lit("pair")).alias("matched"),
        pl.when(unknown)
        .then(pl.lit("the peer of the message is not recorded"))
        .when(holed)
        .then(pl.lit("a rank's record has holes, so messages cannot be counted"))
        .alias("unmatched"),
        pl.lit(None, pl.String).alias("key_op"),
        nth.alias("nth"),
        pl.lit(2, pl.Int32).alias("expected"),
    )
