"""From journals to answers, on Spark: ``python -m purgatory.pipeline``. Comes with the extra ``spark``."""

try:
    import pyspark as _pyspark  # noqa: F401  (only to fail here, with a message that helps)
except ImportError as error:
    raise ImportError("purgatory.pipeline runs on Spark: pip install 'asyncio-purgatory[spark]'") from error
