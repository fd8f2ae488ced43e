"""Recorders of a callable: the operator graph of a torch, JAX or TensorFlow function, in the tables of a rank.

Every recorder writes the rows that the tracer writes in a job, so that records of all frameworks match each
other. A framework is imported when it is asked for.
"""
