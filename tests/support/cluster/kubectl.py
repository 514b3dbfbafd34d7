"""kubectl as a person calls it, for tests: its output and its exit code, against one control plane only."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

LIMIT = 90.0
"""Seconds after which a call that does not come back fails the test."""


@dataclass(frozen=True, slots=True)
class Output:
    """What one call said."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with a kubeconfig and a default namespace; the user's own settings play no part."""

    program: Path
    kubeconfig: Path
    namespace: str = "default"

    def __call__(self, *arguments: str, input: str | None = None, limit: float = LIMIT) -> Output:  # noqa: A002
        """Run `kubectl arguments`; `input` is its standard input. An exit code that is not 0 fails the test."""
        output = self.attempt(*arguments, input=input, limit=limit)
        assert output.code == 0, f"kubectl {' '.join(arguments)}: {output.err}"
        return output

    def attempt(self, *arguments: str, input: str | None = None, limit: float = LIMIT) -> Output:  # noqa: A002
        """Run `kubectl arguments`, whatever comes of it."""
        done = subprocess.run(
            [str(self.program), f"--namespace={self.namespace}", *arguments],
            env=self._environment(),
            input="" if input is None else input,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        return Output(done.returncode, done.stdout, done.stderr)

    def apply(self, *objects: Mapping[str, Any]) -> Output:
        """Apply objects."""
        return self("apply", "-f", "-", input=yaml.safe_dump_all(objects))

    def _environment(self) -> Mapping[str, str]:
        # Its cache of the kinds that the apiserver knows lies beside the kubeconfig, and goes with it.
        home = str(self.kubeconfig.parent)
        return {"PATH": os.defpath, "HOME": home, "KUBECONFIG": str(self.kubeconfig)}
