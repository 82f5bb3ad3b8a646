"""The benchmarks: ``python tests/benchmarks PROGRAM``, in a clone with the extra `test`.

``long_polls`` is the program ``http``; `harness` has the common parts. The programs
``latency_stream.py`` and ``throughput_stream.py`` run by themselves.
"""
