"""Errors of the programs whose message is enough for a user."""


class NoJournal(Exception):
    """There is no journal where one should be."""


class SparkUnavailable(Exception):
    """Spark cannot be started here; the message has the reason and a remedy."""
