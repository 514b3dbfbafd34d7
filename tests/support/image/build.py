"""The images that the tests and `make image` use: found in the cache folder, else built there once.

`prepare` is called by the fixtures of the end-to-end tests, by the node and by `make image`. The cache is keyed by
all that goes into the images, so an unchanged tree builds nothing.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.cluster import cache, debian
from support.cluster.binaries import cache_folder
from support.image import archive, base, inputs, pause
from support.image.archive import Image
from support.image.builder import PACKAGES, Builder, Recipe
from support.image.sandbox import Sandbox, require_rights

_KEPT = 2  # sets of images; another checkout may be using the last but one


@dataclass(frozen=True, slots=True)
class Images:
    """The images of one checkout; all of the archives exist."""

    docgrid: Image
    backing: Image
    """The project's image with PostgreSQL, an S3 server and an embedding model, for pods of tests."""
    pause: Image


def prepare(report: Callable[[str], None], environment: Mapping[str, str] = os.environ) -> Images:
    """Return the images of this checkout, built first if the cache does not have them.

    The first time that takes minutes, in which `report` is called every few seconds. Raises `ClusterUnavailable`,
    with the reason.
    """
    folder = cache_folder(environment) / "images"
    with cache.locked(folder, "the images", report):
        wanted = inputs.read()
        images = _place(folder / "built" / wanted.key, wanted.key)
        if not images.docgrid.archive.parent.exists():
            require_rights()
            _build(folder, wanted, images, report)
        images.docgrid.archive.parent.touch()
        for pattern in ("built/*", "base-*.tar", "servers-*.tar"):
            prune(folder.glob(pattern), keep=_KEPT)
    return images


def prune(paths: Iterable[Path], *, keep: int) -> None:
    """Remove all but the `keep` files or folders that were used last."""
    by_use = sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
    for old in by_use[keep:]:
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()


def _place(folder: Path, key: str) -> Images:
    return Images(
        docgrid=Image(f"localhost/docgrid:{key}", folder / "docgrid.tar"),
        backing=Image(f"localhost/docgrid-backing:{key}", folder / "backing.tar"),
        pause=Image(pause.NAME, folder / "pause.tar"),
    )


def _build(folder: Path, wanted: inputs.Inputs, images: Images, report: Callable[[str], None]) -> None:
    """Build all images into a scratch folder that becomes theirs once it is whole."""
    target = images.docgrid.archive.parent
    report(f"building the images {images.docgrid.name} and {images.backing.name} into {target}")
    with tempfile.TemporaryDirectory(prefix="new-", dir=folder) as name:
        scratch = Path(name)
        tools = debian.find_or_fetch(folder, "image-tools", PACKAGES, report)
        sandbox = Sandbox(tools, scratch, report)
        base_image = base.find_or_make(folder, sandbox)
        builder = Builder(folder, sandbox)
        builder.clear_after_killed_runs()
        builder.pull(base_image)
        made = _place(scratch / "built", wanted.key)
        made.docgrid.archive.parent.mkdir()
        plain = Image(made.docgrid.name, scratch / "docgrid.tar")
        builder.build(_project(wanted, base_image), plain)
        # buildah takes a LABEL of its last build for the same, whatever the build arguments are now.
        labels = {
            f"org.opencontainers.image.{name.lower()}": value for name, value in wanted.arguments.items()
        }
        archive.relabel(plain, made.docgrid, labels)
        servers = _find_or_build_servers(folder, scratch, wanted, base_image, builder)
        archive.stack(made.docgrid, servers, made.backing)
        pause.write(made.pause.archive, tools / "bin" / "busybox")
        builder.forget(keep={made.docgrid.name, servers.name, base_image.name})
        target.parent.mkdir(exist_ok=True)
        made.docgrid.archive.parent.rename(target)


def _find_or_build_servers(
    folder: Path, scratch: Path, wanted: inputs.Inputs, base_image: Image, builder: Builder
) -> Image:
    """Return the layers of the servers, which our sources are not in, of the cache `folder`."""
    key = wanted.backing_key(base.key())
    image = Image(f"localhost/docgrid-servers:{key}", folder / f"servers-{key}.tar")
    if not image.archive.exists():
        context = scratch / "backing"
        shutil.copytree(inputs.BACKING, context)
        (context / "requirements.lock").write_text(wanted.backing_pins)
        whole = Image(image.name, scratch / "servers.tar")
        arguments = {"BASE_IMAGE": base_image.name}
        builder.build(Recipe(context / "Dockerfile", context, arguments, "servers"), whole)
        whole.archive.replace(image.archive)
    return image


def _project(wanted: inputs.Inputs, base_image: Image) -> Recipe:
    arguments = {"BASE_IMAGE": base_image.name, **wanted.arguments}
    return Recipe(inputs.ROOT / "Dockerfile", inputs.ROOT, arguments, "dependencies")
