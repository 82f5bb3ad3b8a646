"""The benchmarks: ``python tests/benchmarks PROGRAM``, in a clone with the extra `test`.

``micro`` measures one operation at a time, against what the event loop offers for the same work. ``http`` measures long polls
on a real server, against the handler that people write today. These two tell a user what to expect; both measure `cases`,
which `runner` runs and `report` prints. ``relay`` measures waits that complete in another process.

The others are for those who design timing wheels. ``cascade`` measures how late anybody is while a million deadlines are moved.
``load``, ``burst`` and ``memory``, in `baselines`, compare whole purgatories under load, in a burst and in size.
"""
