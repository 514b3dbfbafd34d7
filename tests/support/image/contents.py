"""What is in an image, read from its archive; no container and no builder is needed. Tests of the image call it."""

import hashlib
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from support.image.archive import Image, Json, read_description

_HIDES = ".wh."
_HIDES_ALL = ".wh..wh..opq"


def read_config(image: Image) -> Json:
    """Return the image's config, with its history."""
    with tarfile.open(image.archive) as archive:
        return read_description(archive)[1]


def read_files(image: Image) -> dict[str, tarfile.TarInfo]:
    """Return what a container sees, by path without a leading slash."""
    files: dict[str, tarfile.TarInfo] = {}
    for layer in _layers(image):
        for member in layer:
            path = PurePosixPath(member.name)
            if path.name == _HIDES_ALL:
                _hide(files, path.parent)
            elif path.name.startswith(_HIDES):
                _hide(files, path.with_name(path.name.removeprefix(_HIDES)))
            else:
                files[str(path)] = member
    return files


def read_digests(image: Image) -> dict[str, str]:
    """Return the hash of each regular file that a container sees, and what each link points to."""
    visible, digests = read_files(image), {}
    for layer in _layers(image):
        for member in layer:
            path = str(PurePosixPath(member.name))
            if visible.get(path) is not None and member.isreg():
                digests[path] = hashlib.sha256(_content(layer, member)).hexdigest()
            elif visible.get(path) is not None and (member.issym() or member.islnk()):
                digests[path] = f"-> {member.linkname}"
    return digests


def find_text(image: Image, *texts: str) -> list[str]:
    """Return the files that hold one of the texts, those too that a later layer hides: nothing in a layer is secret."""
    wanted = [text.encode() for text in texts]
    return [
        member.name
        for layer in _layers(image)
        for member in layer
        if member.isreg() and any(text in _content(layer, member) for text in wanted)
    ]


def unpack(image: Image, folder: Path) -> None:
    """Write what a container sees into an empty folder; as root, so that owners and links are the image's."""
    visible = read_files(image)
    for layer in _layers(image):
        for member in layer:
            if str(PurePosixPath(member.name)) in visible:
                layer.extract(member, folder, numeric_owner=True, filter="fully_trusted")


def _layers(image: Image) -> Iterator[tarfile.TarFile]:
    """Yield the layers, the lowest first; they are read from the archive where they lie."""
    with tarfile.open(image.archive) as archive:
        for name in read_description(archive)[0]["Layers"]:
            with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                yield layer


def _content(layer: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = layer.extractfile(member)
    assert stream is not None
    return stream.read()


def _hide(files: dict[str, tarfile.TarInfo], path: PurePosixPath) -> None:
    for name in [name for name in files if name == str(path) or name.startswith(f"{path}/")]:
        del files[name]
