"""Archives of images as `docker save` writes them: made here for what needs no builder.

The base and the pause image are a single layer each; other labels are another config of the same layers; and what lies
in folders of its own is put on an image without building that again. Containerd, docker, podman, buildah and skopeo
load such files. `contents` reads them.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

Json = dict[str, Any]

_EPOCH = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a file: its name with its tag, and the archive that brings it."""

    name: str
    archive: Path


def write(image: Image, layer: Path, config: Mapping[str, Any]) -> None:
    """Write the archive of an image with one layer, which is a tar file that is not compressed."""
    with layer.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    described = {
        "architecture": "amd64",
        "os": "linux",
        "created": _EPOCH,
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created": _EPOCH}],
    }
    with tarfile.open(image.archive, "w") as target:
        with layer.open("rb") as stream:
            _add(target, f"{digest}.tar", stream, layer.stat().st_size)
        _add_description(target, image.name, described, [f"{digest}.tar"])


def relabel(source: Image, target: Image, labels: Mapping[str, str]) -> Image:
    """Write the image `target`, which is `source` with other labels, and return it: a second, and no builder."""
    with tarfile.open(source.archive) as old, tarfile.open(target.archive, "w") as new:
        manifest, config = read_description(old)
        config["config"]["Labels"] = {**(config["config"].get("Labels") or {}), **labels}
        _copy_layers(old, manifest["Layers"], new)
        _add_description(new, target.name, config, manifest["Layers"])
    return target


def stack(below: Image, above: Image, target: Image) -> Image:
    """Write the image `target`, which is `below` with the layers of `above` on top, and return it."""
    with (
        tarfile.open(below.archive) as first,
        tarfile.open(above.archive) as second,
        tarfile.open(target.archive, "w") as new,
    ):
        (low, config), (high, other) = read_description(first), read_description(second)
        for source, manifest in ((first, low), (second, high)):
            _copy_layers(source, manifest["Layers"], new)
        config["rootfs"]["diff_ids"] += other["rootfs"]["diff_ids"]
        config["history"] += other["history"]
        _add_description(new, target.name, config, [*low["Layers"], *high["Layers"]])
    return target


def read_description(archive: tarfile.TarFile) -> tuple[Json, Json]:
    """Return the manifest and the config of the archive's image."""
    (manifest,) = json.loads(_read(archive, "manifest.json"))
    return manifest, json.loads(_read(archive, manifest["Config"]))


def _add_description(target: tarfile.TarFile, name: str, config: Json, layers: list[str]) -> None:
    content = json.dumps(config, sort_keys=True).encode()
    place = f"{hashlib.sha256(content).hexdigest()}.json"
    manifest = json.dumps([{"Config": place, "RepoTags": [name], "Layers": layers}]).encode()
    _add(target, place, io.BytesIO(content), len(content))
    _add(target, "manifest.json", io.BytesIO(manifest), len(manifest))


def _copy_layers(source: tarfile.TarFile, names: list[str], target: tarfile.TarFile) -> None:
    for name in dict.fromkeys(names):
        stream = source.extractfile(name)
        assert stream is not None
        _add(target, name, stream, source.getmember(name).size)


def _add(target: tarfile.TarFile, name: str, stream: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    target.addfile(member, stream)


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    stream = archive.extractfile(name)
    assert stream is not None
    return stream.read()
