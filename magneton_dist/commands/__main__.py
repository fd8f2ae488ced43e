"""``python -m magneton_dist.commands``: the command line without an installed script."""

from magneton_dist.commands import main

main()
