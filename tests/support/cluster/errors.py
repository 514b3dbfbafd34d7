"""What the cluster harness raises."""


class ClusterUnavailable(Exception):
    """The control plane can not run on this machine; the text says why, and what would help."""


class ApiError(Exception):
    """The apiserver refused a request, or did not answer (`status` 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
