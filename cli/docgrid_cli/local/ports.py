"""Free TCP ports on loopback, for the servers of the local stack and of the tests."""

import contextlib
import random
import socket
from collections.abc import Collection

LOOPBACK = "127.0.0.1"
GRPC_OFFSET = 10_000  # SeaweedFS listens on each of its ports and on that port + 10000
# With the offset still below 32768, where Linux begins to take ports for outgoing connections: a port that is
# kept from one run to the next is then seldom taken by a passer-by.
_LOWEST, _HIGHEST = 20_000, 22_700


def is_free(port: int) -> bool:
    """Tell whether a server could listen on 127.0.0.1:`port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return True
    return False


def are_free(first: int, *, count: int) -> bool:
    """Tell whether `count` ports from `first` on, and their gRPC partners, are all free."""
    ports = range(first, first + count)
    return all(is_free(port) and is_free(port + GRPC_OFFSET) for port in ports)


def free_ports(*, count: int = 1, wanted: int | None = None, avoid: Collection[int] = ()) -> int:
    """Return the first of `count` neighbouring ports that are free, and not in `avoid`.

    `wanted`, from an earlier run, is returned as long as it is free.
    """
    if wanted is not None and are_free(wanted, count=count):
        return wanted
    starts = range(_LOWEST, _HIGHEST - count)
    for first in random.sample(starts, k=len(starts)):
        if are_free(first, count=count) and not set(range(first, first + count)) & set(avoid):
            return first
    raise OSError(f"no free port on {LOOPBACK} between {_LOWEST} and {_HIGHEST}")
