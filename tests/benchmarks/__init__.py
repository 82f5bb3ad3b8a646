"""The benchmarks: ``python tests/benchmarks PROGRAM``, in a clone with the extra `test`."""
