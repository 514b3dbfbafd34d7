"""helm as a person calls it, for tests: its output and its exit code, offline or against one control plane only."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.cluster.kubectl import Output

LIMIT = 90.0
"""Seconds after which a call that does not come back fails the test."""

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Helm:
    """helm with a home of its own; the user's settings and caches play no part. Without a kubeconfig it is offline."""

    program: Path
    home: Path
    kubeconfig: Path | None = None
    namespace: str = "default"

    def __call__(self, *arguments: str, values: Values | None = None) -> Output:
        """Run `helm arguments` with values for the chart. An exit code that is not 0 fails the test."""
        output = self.attempt(*arguments, values=values)
        assert output.code == 0, f"helm {' '.join(arguments)}: {output.err}"
        return output

    def attempt(self, *arguments: str, values: Values | None = None) -> Output:
        """Run `helm arguments`, whatever comes of it."""
        given = () if values is None else ("--values", "-")
        done = subprocess.run(
            [str(self.program), f"--namespace={self.namespace}", *arguments, *given],
            env=self._environment(),
            input=yaml.safe_dump(dict(values or {})),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        return Output(done.returncode, done.stdout, done.stderr)

    def _environment(self) -> Mapping[str, str]:
        kubeconfig = self.kubeconfig or self.home / "none"
        return {"PATH": os.defpath, "HOME": str(self.home), "KUBECONFIG": str(kubeconfig)}
