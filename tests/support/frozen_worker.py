"""A worker process that stands still in the middle of a transaction: run as a script by the tests.

`python frozen_worker.py POD MODE` registers a worker in the pod, claims and starts a job, and stores its chunks.
In mode `stop` it stops itself by SIGSTOP while it holds the job's lock; in mode `wait` it goes on, for the test
to stop or kill it. Once it goes on and is refused, it prints the name of each error and ends.
"""

import os
import signal
import sys
import uuid
from dataclasses import replace

from docgrid_core.database import Database
from docgrid_core.errors import DocGridError
from docgrid_core.settings import DatabaseSettings, load
from docgrid_core.store import attempts, parse, workers
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE

TRIES = 2
"""The first call may meet its dead connection, the next one meets the fence."""


def main(pod_uid: str, mode: str) -> None:
    """Run the worker."""
    instance = uuid.uuid4()
    db = Database(load(DatabaseSettings), application_name=f"{workers.APPLICATION_PREFIX}{instance}")
    worker = workers.register(db, replace(factories.identity(pod_uid=pod_uid), instance_id=instance))
    own = attempts.start(db, factories.claim_one(db, worker)).ownership
    parse.prepare(db, own)
    if mode == "stop":
        db.listen_to_statements(stop_under_the_lock)
    for _ in range(TRIES):
        try:
            parse.store(db, own, factories.chunks(), lease_duration=LEASE)
        except DocGridError as error:
            print(type(error).__name__, flush=True)
        else:
            print("stored", flush=True)
    db.close()


def stop_under_the_lock(statement: str) -> None:
    """Stop the whole process in front of the insert, with job and version locked."""
    if "INSERT INTO document_chunks" in statement:
        os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    main(*sys.argv[1:])
