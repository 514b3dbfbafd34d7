"""The pause image, which holds a pod's namespaces: a shell that sleeps, from Debian's static busybox. No builder."""

import io
import tarfile
from pathlib import Path

from support.image import archive
from support.image.archive import Image

NAME = "localhost/pause:1"

# A first process has no default for signals: without the trap it would live until it is killed.
_SLEEP = "trap 'exit 0' TERM INT; /bin/busybox sleep 2147483647 & wait"
_NOBODY = "65534:65534"


def write(target: Path, busybox: Path) -> Image:
    """Write the image's archive to `target` and return it."""
    image = Image(NAME, target)
    layer = target.with_suffix(".layer")
    with tarfile.open(layer, "w") as content:
        _add(content, "bin", b"", tarfile.DIRTYPE)
        _add(content, "bin/busybox", busybox.read_bytes(), tarfile.REGTYPE)
    archive.write(image, layer, {"Entrypoint": ["/bin/busybox", "sh", "-c", _SLEEP], "User": _NOBODY})
    layer.unlink()
    return image


def _add(content: tarfile.TarFile, name: str, data: bytes, kind: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.size, member.mode = kind, len(data), 0o755
    content.addfile(member, io.BytesIO(data))
