"""The apiserver's audit log: every request that wants to change something, as soon as it is answered.

Tests count with it what a user wrote: it sees writes that change nothing, which a resourceVersion does not show.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_READS = ("get", "list", "watch")
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "None", "verbs": [*_READS]}, {"level": "Metadata"}],
}
_UNCOUNTED = {"tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"}
"""Questions that have the form of a write."""
_LONGEST_LINE = 65_536


@dataclass(frozen=True, slots=True)
class Write:
    """One request; `verb` is create, update, patch, delete or deletecollection, `code` the answer's HTTP status."""

    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int


class AuditLog:
    """Reads the file that the apiserver writes before it answers."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mark(self) -> int:
        """Return where the last whole line ends now, for `since`."""
        if not self.path.exists():
            return 0
        with self.path.open("rb") as stream:
            start = max(0, stream.seek(0, os.SEEK_END) - _LONGEST_LINE)
            stream.seek(start)
            return start + stream.read().rfind(b"\n") + 1

    def writes(self, user: str = "", *, since: int = 0) -> list[Write]:
        """Return the writes that were answered after a mark, of one user or of everybody; dry runs are none."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as stream:
            stream.seek(since)
            whole, _, _ = stream.read().rpartition(b"\n")
        found = [_write(json.loads(line)) for line in whole.splitlines()]
        return [write for write in found if write is not None and user in ("", write.user)]


def _write(event: dict[str, Any]) -> Write | None:
    object_ = event.get("objectRef")
    if object_ is None or object_.get("resource") in _UNCOUNTED or "dryRun=All" in event["requestURI"]:
        return None
    return Write(
        user=event["user"]["username"],
        verb=event["verb"],
        resource=object_["resource"],
        subresource=object_.get("subresource", ""),
        namespace=object_.get("namespace", ""),
        name=object_.get("name", ""),
        code=event.get("responseStatus", {}).get("code", 0),
    )
