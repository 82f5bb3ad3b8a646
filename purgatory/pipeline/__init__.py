"""Programs for the journals of servers: ``python -m purgatory.pipeline``.

There are four programs: ``report`` and ``compact`` read the journals of purgatories,
``synth`` generates such a journal, and ``stream`` decides on streams of operations, as
`purgatory.pipeline.streaming` does for your own DataFrames. Each is a package or a module. The
modules beside them are shared: files and rows of journals, and the Spark session.

``report`` needs the extra ``report``, and for large journals or those on other machines the extra
``spark`` and Java 17, as ``stream`` and ``synth`` do. ``compact`` needs the extra
``journal``.
"""
