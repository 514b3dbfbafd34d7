"""The protocol of DocGrid: the schema, the state machine and every transaction on the database.

Worker, command line and (later) operator and API call this package; it imports none of them.
"""
