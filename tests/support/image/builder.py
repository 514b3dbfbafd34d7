"""Builds the images with buildah, from Debian's packages, out of the two Dockerfiles. `build` calls it.

buildah needs no daemon and no BuildKit. Its storage stays in the cache folder, so that a change of our sources makes
the layers that hold them, and no other.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.image import base
from support.image.archive import Image
from support.image.sandbox import Sandbox

PACKAGES = ("buildah", "libgpgme11", "libassuan0", base.TOOL, "busybox-static")

_ANY = json.dumps({"default": [{"type": "insecureAcceptAnything"}]})  # our own files are all that is pulled
_CA = "/run/pip-ca.pem"  # where a build step finds the caller's certificates
_OPTIONS = ("--layers", "--isolation=chroot", "--pull-never", "--timestamp=0", "--format=oci")
_PIP = {
    "index-url": "PIP_INDEX_URL",
    "extra-index-url": "PIP_EXTRA_INDEX_URL",
    "trusted-host": "PIP_TRUSTED_HOST",
    "cert": "PIP_CERT",
}
_SETTING = re.compile(r"^(?::env:|global|install|download)\.(?P<name>[a-z-]+)='(?P<value>.*)'$")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A Dockerfile, what it may copy from, its build arguments, and its stage that takes long and seldom changes."""

    file: Path
    context: Path
    arguments: Mapping[str, str]
    slow_stage: str


class Builder:
    """buildah with a storage of its own in the cache `folder`."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        policy, registries = sandbox.scratch / "policy.json", sandbox.scratch / "registries.conf"
        policy.write_text(_ANY)
        registries.write_text("")
        places = {"--root": folder / "storage", "--runroot": sandbox.scratch / "run"}
        self._buildah = ["buildah", *(str(part) for pair in places.items() for part in pair)]
        self._buildah += ["--storage-driver", "overlay", "--registries-conf", str(registries)]
        self._policy = ["--signature-policy", str(policy)]
        self._pip = _pip_settings()

    def clear_after_killed_runs(self) -> None:
        """Remove half-built containers, which would hold their images for ever; nobody else builds meanwhile."""
        self._run(["rm", "--all"], "removal of what a killed run left")

    def pull(self, image: Image) -> None:
        """Take an image of ours from its archive into the storage, unless it is there."""
        there = self._run(["images", "--all", "--format", "{{.Name}}:{{.Tag}}"], "list of images")
        if image.name not in there.splitlines():
            self._run(["pull", *self._policy, f"docker-archive:{image.archive}"], "pull")

    def build(self, recipe: Recipe, image: Image) -> None:
        """Build an image and write its archive."""
        # 1. The stage that takes long, under a name of its own: what has none is taken for waste. It alone asks the
        #    index of packages, so it alone sees the caller's certificates: a mount leaves an empty file in its layer.
        target = ["--target", recipe.slow_stage, "--tag", f"localhost/docgrid-{recipe.slow_stage}:slow"]
        certificates = self._pip.get("PIP_CERT")
        mount = ["--volume", f"{certificates}:{_CA}:ro"] if certificates else []
        self._bud(recipe, [*target, *mount], f"image, {recipe.slow_stage}")
        # 2. The rest; the stage comes from the storage.
        self._bud(recipe, ["--tag", image.name], f"image {image.name}")
        # 3. The archive.
        place = f"docker-archive:{image.archive}:{image.name}"
        self._run(["push", *self._policy, image.name, place], f"archive of {image.name}")

    def forget(self, *, keep: set[str]) -> None:
        """Remove images of other inputs from the storage; layers that later builds can use stay."""
        listed = self._run(["images", "--format", "{{.Name}}:{{.Tag}}"], "list of images").splitlines()
        ours = re.compile(r"localhost/docgrid(-base|-servers)?:[0-9a-f]{12}")
        old = [name for name in listed if ours.fullmatch(name) and name not in keep]
        if old:
            self._run(["rmi", *old], "removal of old images")
        self._run(["rmi", "--prune"], "removal of old layers")

    def _bud(self, recipe: Recipe, options: list[str], what: str) -> None:
        given = [f"--build-arg={key}={value}" for key, value in recipe.arguments.items()]
        # Without a value: buildah takes it from its environment, and no command line shows it.
        given += [f"--build-arg={key}" for key in self._pip]
        places = ["--file", str(recipe.file), str(recipe.context)]
        inside = self._pip | ({"PIP_CERT": _CA} if "PIP_CERT" in self._pip else {})
        self._run(["bud", *_OPTIONS, *self._policy, *options, *given, *places], what, inside)

    def _run(self, command: list[str], what: str, environment: Mapping[str, str] | None = None) -> str:
        return self._sandbox.run([*self._buildah, *command], what, environment=environment)


def _pip_settings() -> dict[str, str]:
    """Return how pip reaches its index on this machine, by the names of its variables; files and environment."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    found = [match for line in listed.stdout.splitlines() if (match := _SETTING.match(line))]
    settings = {_PIP[match["name"]]: match["value"] for match in found if match["name"] in _PIP}
    certificates = settings.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    return settings | ({"PIP_CERT": certificates} if certificates else {})
