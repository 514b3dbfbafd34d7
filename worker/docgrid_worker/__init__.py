"""The worker process: one row in the database, `max_concurrency` slots, and the order of a worker's life.

`python -m docgrid_worker` runs it; in a pod as PID 1, under the local stack as a child process.
"""
