"""Waiting under keys, and deadlines. Depends on the standard library alone."""
