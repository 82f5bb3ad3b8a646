"""Whole purgatories, ours and others, on the same work: ``load`` and ``memory``.

`implementations` has the purgatories; `workload` describes the requests, and `driver` makes them.
"""
