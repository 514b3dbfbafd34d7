"""The probes of a running container: HTTP against the pod's own address, as often as its spec says.

`pod_container` asks them in the pod's thread. Other handlers than httpGet count as passed.
"""

import http.client
import time
from http import HTTPStatus

from support.cluster.api import Object

_PERIOD, _TIMEOUT, _FAILURES = 10, 1, 3  # the defaults of Kubernetes


class Probe:
    """One probe of one run of a container."""

    def __init__(self, spec: Object, *, address: str, ports: Object, passes_at_first: bool) -> None:
        """Take a probe's spec; `ports` are the container's by name."""
        self._spec = spec
        self._address = address
        self._ports = ports
        self._next: float = time.monotonic() + spec.get("initialDelaySeconds", 0)
        self._streak = 0
        self._last = passes_at_first
        self.passes = passes_at_first
        self.failed = False
        """more failures in a row than the spec allows"""

    def wait(self) -> float:
        """Return the seconds until it is due."""
        return max(0.0, self._next - time.monotonic())

    def run_if_due(self) -> None:
        """Ask if it is time, and judge by the thresholds."""
        if self.wait() > 0:
            return
        outcome = self._ask()
        self._streak = self._streak + 1 if outcome == self._last else 1
        self._last = outcome
        if outcome and self._streak >= self._spec.get("successThreshold", 1):
            self.passes, self.failed = True, False
        if not outcome and self._streak >= self._spec.get("failureThreshold", _FAILURES):
            self.passes, self.failed = False, True
        self._next = time.monotonic() + self._spec.get("periodSeconds", _PERIOD)

    def _ask(self) -> bool:
        get = self._spec.get("httpGet")
        if get is None:
            return True
        port = get["port"]
        number = self._ports[port] if isinstance(port, str) else port
        limit = self._spec.get("timeoutSeconds", _TIMEOUT)
        connection = http.client.HTTPConnection(self._address, number, timeout=limit)
        try:
            connection.request("GET", get.get("path", "/"))
            return HTTPStatus.OK <= connection.getresponse().status < HTTPStatus.BAD_REQUEST
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
