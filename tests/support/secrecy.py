"""All that an error could show to anybody: where tests look for what must be in none."""

import traceback


def everything_said(error: BaseException) -> str:
    """Return text, repr, fields and traceback of an error, with the errors that it came from."""
    shown = "".join(traceback.format_exception(error))
    return f"{error} {error!r} {vars(error)} {shown}"
