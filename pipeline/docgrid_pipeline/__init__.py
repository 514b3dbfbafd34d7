"""What happens to a document: object store, parsing, chunking, embedding, and the stages of a job.

Worker, command line and (later) API call this package; it knows the protocol of core and nothing above it.
"""
