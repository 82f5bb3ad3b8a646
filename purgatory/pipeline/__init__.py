"""Programs for data that outgrows one event loop: ``python -m purgatory.pipeline``. Needs the extra ``spark`` and Java 17.

There are five programs: ``report``, ``simulate`` and ``compact`` read the journals of purgatories, ``synth`` generates such a
journal, and ``stream`` decides on streams of operations, as `purgatory.pipeline.streaming` does for your own DataFrames. Each
is a package or a module. The modules beside them are shared: the Spark session, and the reading of journals, whose tasks run in
this process or on Spark.
"""

from importlib.util import find_spec as _find_spec

if _find_spec("pyspark") is None:  # fail here, with a helpful message; importing it takes a while
    raise ImportError("purgatory.pipeline runs on Spark: pip install 'asyncio-purgatory[spark]'")
