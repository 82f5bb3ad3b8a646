"""Programs for the journals of servers: ``python -m purgatory.pipeline``.

There are four programs: ``report`` and ``compact`` read the journals of purgatories,
``synth`` generates such a journal, and ``stream`` decides on streams of operations, as
`purgatory.pipeline.streaming` does for your own DataFrames. Each is a package or a module. The
modules beside them are shared: files and rows of journals, and the Spark session.

``report`` and ``synth`` need the extra ``report``, ``compact`` needs the extra ``journal``.
``stream``, and ``report`` on a cluster or a URI, need the extra ``spark`` and Java 17.
"""
