"""The program ``micro``: one operation at a time, against what the event loop offers for the same work."""
