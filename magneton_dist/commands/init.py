"""`magneton-dist init`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def init(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="A command line that works.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("audit.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a configuration to start from out of a command line that works.

    magneton-dist init -- torchrun --nproc-per-node 2 train.py --layers 2
    """
    from magneton_dist.config.starter import starter
    from magneton_dist.errors import InputError

    text = starter(words or [])
    try:
        with open(output, "w" if force else "x", encoding="utf-8", opener=_private) as file:
            file.write(text.replace("FILE", str(output)))
    except FileExistsError as error:
        do = "give --force, or another --output"
        raise InputError("exists already", where=str(output), do=do) from error
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(output)) from error
    typer.echo(f"Wrote {output}")


def _private(path: str, flags: int) -> int:
    """A command line may hold a password: only its owner reads what it becomes."""
    return os.open(path, flags, 0o600)
