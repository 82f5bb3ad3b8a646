"""Whole purgatories, ours and others, on the same work: ``load`` and ``memory``.

`purgatories` has them; `workload` describes the requests, and `driver` makes them.
"""
