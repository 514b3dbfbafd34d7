"""`make image`: builds the project's image, says where its archive lies and how to load it."""

import signal
import sys
import time

from support.cluster.errors import ClusterUnavailable
from support.image.build import prepare


def main() -> int:
    """Build what is not there; return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the builder on the way, as Ctrl-C does
    start = time.monotonic()
    try:
        images = prepare(_say)
    except ClusterUnavailable as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    _say(f"ready after {time.monotonic() - start:.1f} s")
    for image in (images.docgrid, images.backing, images.pause):
        size = image.archive.stat().st_size / 1e6
        print(f"{image.name}  {size:.0f} MB  {image.archive}")
    _say("to load the image, one of:")
    print(f"docker load --input {images.docgrid.archive}")
    print(f"skopeo copy docker-archive:{images.docgrid.archive} docker://REGISTRY/docgrid:TAG")
    return 0


def _say(line: str) -> None:
    print(f"# {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
