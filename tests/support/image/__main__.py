"""`make image`: builds the project's image, says where its archive lies, and loads it into a cluster that runs."""

import signal
import sys
import time

from support.cluster import trial
from support.cluster.errors import ClusterUnavailable
from support.cluster.places import Places
from support.image.build import prepare


def main() -> int:
    """Build what is not there; return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the builder on the way, as Ctrl-C does
    start = time.monotonic()
    places = Places.of_user()
    try:
        images = prepare(_say)
        loaded = trial.load(places, images, _say)
    except ClusterUnavailable as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    _say(f"ready after {time.monotonic() - start:.1f} s")
    for image in (images.docgrid, images.backing, images.pause):
        size = image.archive.stat().st_size / 1e6
        print(f"{image.name}  {size:.0f} MB  {image.archive}")
    if loaded:
        _say("the nodes of the running cluster have it; for its release, say:")
        print(f"helm upgrade --install docgrid helm/docgrid --values {places.run / trial.VALUES}")
    _say("to load it elsewhere, one of:")
    print(f"docker load --input {images.docgrid.archive}")
    print(f"skopeo copy docker-archive:{images.docgrid.archive} docker://REGISTRY/docgrid:TAG")
    return 0


def _say(line: str) -> None:
    print(f"# {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
