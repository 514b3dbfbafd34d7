"""Registering documents from files, folders and S3 prefixes: `finding` says which, `registering` does it.

Called by `docgrid ingest` and the quickstart; nothing in here prints.
"""
