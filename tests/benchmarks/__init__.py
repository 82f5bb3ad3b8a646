"""The benchmarks: ``python tests/benchmarks PROGRAM``, in a clone with the extra `test`.

``micro`` measures one operation at a time, against the event loop's own means for the same work.
``long_polls`` (the program ``http``) does so on a real server, against the handler that people write
today, and ``relay`` for waits that complete in another process. ``load`` and ``memory`` compare the
whole `purgatories`. `harness` has the common parts.
"""
