"""Starting an execution: the attempt's row and number, taken under the job's lock."""

from dataclasses import dataclass

from sqlalchemy import text

from docgrid_core.database import Transaction, transactional
from docgrid_core.jobs import AttemptId, VersionStatus
from docgrid_core.records import Claim, Ownership
from docgrid_core.store.ownership import lock_job

FIND_ATTEMPT = text(
    """
    SELECT id, attempt_no FROM embedding_job_attempts
    WHERE embedding_job_id = :job_id AND claim_token = :token
    """
)

INSERT_ATTEMPT = text(
    """
    INSERT INTO embedding_job_attempts
      (embedding_job_id, worker_node_id, attempt_no, claim_token, status, started_at, created_at, updated_at)
    SELECT :job_id, :worker_id, coalesce(max(attempt_no), 0) + 1, :token, 'STARTED', :now, :now, :now
    FROM embedding_job_attempts WHERE embedding_job_id = :job_id
    RETURNING id, attempt_no
    """
)

READ_VERSION_STATUS = text("SELECT status FROM document_versions WHERE id = :version_id")


@dataclass(frozen=True, slots=True)
class Started:
    """A running execution: the fence for its writes, and where its version stands."""

    ownership: Ownership
    number: int
    version_status: VersionStatus


@transactional
def start(tx: Transaction, claim: Claim) -> Started:
    """Start the execution of a claim; asking again returns the same attempt.

    Raises what `LockedJob.require_owner` raises; a failure before this point has no attempt.
    """
    job = lock_job(tx, claim.job_id)
    job.require_owner(claim.worker_id, claim.token)
    key = {"job_id": job.id, "token": claim.token.value}
    attempt = tx.execute(FIND_ATTEMPT, **key).one_or_none()
    if attempt is None:
        attempt = tx.execute(INSERT_ATTEMPT, worker_id=claim.worker_id, now=job.now, **key).one()
    status = tx.execute(READ_VERSION_STATUS, version_id=job.version_id).scalar_one()
    ownership = Ownership(job.id, claim.worker_id, claim.token, AttemptId(attempt[0]))
    return Started(ownership, attempt[1], VersionStatus(status))
