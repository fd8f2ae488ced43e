"""Which calls of an operator are alike: what replay learns of one of them holds for all."""

from __future__ import annotations

import hashlib

import polars as pl

_TENSOR = r'\{"v":\d+\}'


def signatures(ops: pl.DataFrame, values: pl.DataFrame) -> pl.Series:
    """Of each operator: its name, its arguments, and shape, stride, dtype and device of its tensors, hashed."""
    kind = values.select(
        "value_id",
        kind=pl.concat_str(
            [_joined("shape"), _joined("stride"), pl.col("dtype"), pl.col("device")], separator=";", ignore_nulls=True
        ),
    )
    texts = [ops["name"], ops["arguments"].str.replace_all(_TENSOR, '{"v"}')]
    for column in ("inputs", "outputs"):
        kinds = (
            ops.select("op_id", pl.col(column).alias("value_id"))
            .explode("value_id")
            .join(kind, on="value_id", how="left", maintain_order="left")
            .group_by("op_id")
            .agg(pl.col("kind").fill_null("?").str.join("|"))
        )
        texts.append(ops.select("op_id").join(kinds, on="op_id", how="left", maintain_order="left")["kind"])
    whole = pl.select(pl.concat_str(texts, separator="\n", ignore_nulls=True)).to_series()
    different = whole.unique()
    hashes = [hashlib.blake2b(text.encode(), digest_size=12).hexdigest() for text in different]
    return whole.replace_strict(different, pl.Series(hashes, dtype=pl.String), return_dtype=pl.String)


def _joined(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.List(pl.String)).list.join(",")
