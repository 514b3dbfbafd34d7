"""The error of the local stack: raised everywhere in this package, shown by the commands as one line."""

from docgrid_core.errors import DocGridError


class LocalStackError(DocGridError):
    """A part of the local stack can not be started, stopped or found; the message says what to do."""

    code = "LOCAL-STACK"

    def __str__(self) -> str:
        return self.message
