"""What runs inside a rank of the user's job: standard library and torch only, Python 3.9 or newer.

Nothing here may raise into the job, change its results, or synchronise a device. `site/sitecustomize.py`
gets in, `bootstrap` waits for the first process group, `session` wires the rest.
"""
