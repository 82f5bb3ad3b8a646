"""What outgrows one event loop, on Spark: ``python -m purgatory.pipeline``. Comes with the extra ``spark``, and needs Java 17.

There are four programs: ``report`` and ``simulate`` read the journals of purgatories, ``synth`` makes such a journal, and
``stream`` decides on streams of operations, as `purgatory.pipeline.streaming` does for your own DataFrames. Each has a folder,
or a module if that is enough. The modules beside the folders are what they share: the Spark session, and the reading of
journals.
"""

try:
    import pyspark as _pyspark  # noqa: F401  (only to fail here, with a message that helps)
except ImportError as error:
    raise ImportError("purgatory.pipeline runs on Spark: pip install 'asyncio-purgatory[spark]'") from error
