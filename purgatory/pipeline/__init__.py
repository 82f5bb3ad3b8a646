"""What outgrows one event loop: ``python -m purgatory.pipeline``. Comes with the extra ``spark``; Spark needs Java 17.

There are five programs: ``report``, ``simulate`` and ``compact`` read the journals of purgatories, ``synth`` makes such a
journal, and ``stream`` decides on streams of operations, as `purgatory.pipeline.streaming` does for your own DataFrames. Each
has a folder, or a module if that is enough. The modules beside the folders are what they share: the Spark session, and the
reading of journals, whose tasks run in this process or on Spark.
"""

from importlib.util import find_spec as _find_spec

if _find_spec("pyspark") is None:  # to fail here, with a message that helps; to import it takes a while
    raise ImportError("purgatory.pipeline runs on Spark: pip install 'asyncio-purgatory[spark]'")
