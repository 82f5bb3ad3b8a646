"""Waiting under keys: operations, their watch lists, and the purgatory that tries and ends them. Begin with `lifecycle`."""
