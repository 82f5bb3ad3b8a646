"""The program ``http``: long polls on a real server, ours against the handler that people write
today.

`rows` measures; for that it starts `service`, a server with both handlers, and `clients`, each in a
process of its own.
"""
