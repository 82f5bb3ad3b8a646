"""The program ``simulate``: replays the operations of a journal with other settings of the
purgatory.

`_replay` replays one wheel with one setting, on the event loop of `_timeline`; `_job` distributes
the replays over Spark's workers; `_trials` compares the settings.
"""
