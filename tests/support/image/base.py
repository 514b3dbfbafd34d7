"""The base of the image: Debian with Python, from Debian's packages, without what a container does not use.

`builder` calls it. The image's Dockerfile takes any base; this one is made where no registry can be asked.
"""

import hashlib
from pathlib import Path

from support.image import archive
from support.image.archive import Image
from support.image.sandbox import Sandbox

_SUITE = "bookworm"
_PACKAGES = (
    "usr-is-merged",
    "python3",
    "python3-venv",
    "ca-certificates",
    "libstdc++6",
)  # numpy needs the last
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/lib/*-linux-gnu/gconv/*")
# $1 is the new root. The machine's own name and name server are no part of an image. Bytecode that is never compared
# with its source stays good whatever time a builder gives the files.
_FINISH = """
rm -f "$1/etc/resolv.conf" "$1/etc/hostname" "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old
rm -rf "$1/var/cache/ldconfig" "$1/var/log"/* "$1/usr/lib/python3.11/test"
chroot "$1" python3 -m compileall -q -f --invalidation-mode unchecked-hash /usr/lib/python3 /usr/lib/python3.11
"""
_MERGED = "/usr/share/mmdebstrap/hooks/merged-usr"
_EPOCH = {"SOURCE_DATE_EPOCH": "0"}

TOOL = "mmdebstrap"


def key() -> str:
    """Return what tells one recipe from another. Debian's state of the day is not in it: a base stays until then."""
    recipe = repr((_SUITE, _PACKAGES, _LEFT_OUT, _FINISH, _MERGED))
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def find_or_make(folder: Path, sandbox: Sandbox) -> Image:
    """Return the base of the cache `folder`, made first if it is not there."""
    image = Image(f"localhost/docgrid-base:{key()}", folder / f"base-{key()}.tar")
    if not image.archive.exists():
        sandbox.report(
            f"making the base image from Debian's packages ({_SUITE}, 40 MB to fetch, half a minute)"
        )
        layer, whole = sandbox.scratch / "layer.tar", Image(image.name, sandbox.scratch / "base.tar")
        sandbox.run(_command(layer), "base image", environment=_EPOCH)
        archive.write(whole, layer, {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": ["python3"]})
        layer.unlink()
        whole.archive.replace(image.archive)
    return image


def _command(target: Path) -> list[str]:
    return [
        TOOL,
        "--mode=root",
        "--variant=essential",
        f"--include={','.join(_PACKAGES)}",
        f"--hook-dir={_MERGED}",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT),
        f"--customize-hook={_FINISH}",
        "--skip=output/dev",
        _SUITE,
        str(target),
    ]
