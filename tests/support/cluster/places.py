"""Where the files of a person's cluster lie: `make cluster-up` writes them, `make image` finds the nodes by them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from docgrid_cli.local.home import holder, home_folder
from support.cluster.node import PID


@dataclass(frozen=True, slots=True)
class Places:
    """The files of the cluster of one user."""

    folder: Path

    @classmethod
    def of_user(cls) -> "Places":
        """Return the places of whoever runs this; nothing has to be there."""
        return cls(home_folder().with_name("docgrid-cluster"))

    @property
    def run(self) -> Path:
        """What is new with each start."""
        return self.folder / "run"

    @property
    def programs(self) -> Path:
        """The commands that a person calls."""
        return self.run / "bin"

    @property
    def kubeconfig(self) -> Path:
        """The admin's."""
        return self.run / "admin.kubeconfig"

    @property
    def ready(self) -> Path:
        """There once the cluster is ready; holds the number of its real nodes."""
        return self.run / "ready"

    @property
    def log(self) -> Path:
        """What the serving process says."""
        return self.folder / "cluster.log"

    @property
    def nodes(self) -> Mapping[str, int]:
        """The real nodes by name, with the id of the first process of each; none if no cluster runs."""
        files = self.run.glob(f"node-*/{PID}") if holder(self.folder) else []
        return {file.parent.name: int(file.read_text()) for file in sorted(files)}
