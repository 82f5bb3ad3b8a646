"""Whole purgatories, ours and others, on the same work: ``load``, ``burst`` and
``memory``.

You do not need these programs to use the library. They compare its design with others.
`implementations` has the purgatories; `workload` describes the requests, and `driver` makes them.
"""
