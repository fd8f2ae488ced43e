"""Operators of one run that did nothing for it: what was computed twice, read by nobody, copied or sent in vain."""
