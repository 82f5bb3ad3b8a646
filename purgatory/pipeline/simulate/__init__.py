"""The program ``simulate``: the operations of a journal once more, with other settings of the purgatory.

`_replay` replays one wheel with one setting, on the loop of `_timeline`; `_job` spreads the replays over Spark's workers;
`_trials` compares the settings.
"""
