"""Whole purgatories, ours and six others, on the same work: ``load``, ``burst`` and ``memory``.

You do not need these programs to use the library. They are here for those who want to know how its design compares. `designs`
has the purgatories; `_workload` says what the requests are like, and `_driver` makes them.
"""
