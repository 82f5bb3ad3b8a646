"""The program ``micro``: one operation at a time, against the event loop's own means for the same
work."""
