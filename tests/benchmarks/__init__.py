"""The benchmarks: ``python tests/benchmarks PROGRAM``, in a clone with the extra `test`.

``micro`` measures one operation at a time, against the event loop's own means for the same work.
``http`` measures long polls on a real server, against the handler that people write today. Both
measure `cases`, which `runner` runs and `report` prints. ``relay`` measures waits that complete in
another process. ``load`` and ``memory``, in `baselines`, compare whole purgatories under load and in
size.
"""
