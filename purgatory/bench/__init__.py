"""The benchmark: ``python -m purgatory.bench``.

``micro`` measures one operation at a time, against what the event loop offers for the same work. ``http`` measures long polls
on a real server, against the handler that people write today. These two tell a user what to expect; both measure `_cases`,
which `_runner` runs and `_report` prints. ``relay`` measures waits that complete in another process.

The others are for those who design timing wheels. ``cascade`` measures how late anybody is while a million deadlines are moved.
``load``, ``burst`` and ``memory``, in `rivals`, compare whole purgatories, ours and six others, under load, in a burst and in
size. ``all`` runs everything but ``relay``.

The programs print with rich and draw with matplotlib, which come with the extra ``bench``.
"""

try:
    import rich as _rich  # noqa: F401  (only to fail here, with a message that helps)
except ImportError as error:
    raise ImportError("purgatory.bench prints with rich: pip install 'asyncio-purgatory[bench]'") from error
