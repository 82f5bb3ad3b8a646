"""Waiting until the value of a key has reached a threshold."""
