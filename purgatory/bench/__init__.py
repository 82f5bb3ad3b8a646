"""The benchmark: ``python -m purgatory.bench``.

``micro`` measures one operation at a time against what the event loop offers for the same work; ``load``, ``burst`` and
``memory`` compare whole purgatories (`designs`) under load, in a burst and in size; ``all`` is all of them. They print with
rich and draw with matplotlib, which come with the extra ``bench``.
"""

try:
    import rich as _rich  # noqa: F401  (only to fail here, with a message that helps)
except ImportError as error:
    raise ImportError("purgatory.bench prints with rich: pip install 'asyncio-purgatory[bench]'") from error
