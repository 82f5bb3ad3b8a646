"""When: the hierarchical timing wheel, and the loop's timers that drive it."""
