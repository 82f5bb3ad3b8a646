"""Whole purgatories, ours and what it is compared with, on the same work: ``load``, ``burst`` and ``memory``.

You do not need these programs to use the library. They are here for those who want to know how its design compares.
`implementations` has the purgatories; `workload` says what the requests are like, and `driver` makes them.
"""
