"""The program ``http``: long polls on a real server, ours against the handler that people write today.

`_rows` measures; for that it starts `_service`, a server with both handlers, and `_clients`, each in a process of its own.
"""
