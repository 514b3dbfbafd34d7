"""Turns what minio, urllib3 and the local disk raise into our own errors: the one place that knows theirs.

`objects` runs every call to the store inside `store_errors` and every touch of a local file inside
`disk_errors`. No text of a foreign error goes on: it may hold hosts, keys or a body.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from http import HTTPStatus
from xml.etree.ElementTree import ParseError

import urllib3
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError

from docgrid_core.errors import (
    ContentUnreadable,
    DiskFull,
    DocGridError,
    InternalError,
    StorageMisconfigured,
    StorageObjectMissing,
    StorageUnavailable,
)

_MISSING = frozenset({"NoSuchKey", "NoSuchVersion"})
_TRY_AGAIN = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Translate whatever a call to the store raises."""
    try:
        yield
    except S3Error as error:
        raise _of_answer(error.response.status, error.code or "") from None
    except ServerError as error:
        raise _of_answer(error.status_code, "") from None
    except InvalidResponseError as error:
        raise _of_answer(error._code, "") from None  # noqa: SLF001 - it shows its status in no other way
    except (MinioException, urllib3.exceptions.HTTPError, ParseError) as error:
        raise StorageUnavailable(type(error).__name__) from None
    except ValueError:
        # minio checks names before it sends them.
        raise StorageMisconfigured("bucket or key is not a valid name") from None


@contextlib.contextmanager
def disk_errors(*, reads_document: bool) -> Iterator[None]:
    """Translate whatever the local disk raises.

    With `reads_document` a person named the file, so the reason goes to the person; else it is our own.
    """
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        if number in _NO_SPACE:
            raise DiskFull from None
        if reads_document:
            raise ContentUnreadable(f"the file can not be read: {os.strerror(number)}") from None
        raise InternalError(errno.errorcode.get(number, "OSError")) from None


def _of_answer(status: int, code: str) -> DocGridError:
    """Return what an error answer of the store means: the object, the way there, or our settings."""
    if code in _MISSING:
        return StorageObjectMissing("the object is not in the store")
    known = code if re.fullmatch("[A-Za-z]{1,64}", code) else ""
    detail = f"HTTP {status} {known}".rstrip()
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _TRY_AGAIN:
        return StorageUnavailable(detail)
    return StorageMisconfigured(detail)
