"""The benchmark: ``python -m purgatory.bench``.

``micro`` measures one operation at a time against what the event loop offers for the same work. The programs here print
with rich, which comes with the extra ``bench``.
"""

try:
    import rich as _rich  # noqa: F401  (only to fail here, with a message that helps)
except ImportError as error:
    raise ImportError("purgatory.bench prints with rich: pip install 'asyncio-purgatory[bench]'") from error
