"""The operator's page leaves nothing out: every metric, every Event and every reason of a condition is on it."""

import re
from pathlib import Path

from prometheus_client import Counter
from prometheus_client.metrics import MetricWrapperBase

import docgrid_operator
from docgrid_operator import metrics

PAGE = (Path(__file__).parents[2] / "docs" / "operations" / "operator.md").read_text()
SOURCES = Path(docgrid_operator.__file__).parent
_NOTED = re.compile(r'\.note\(\s*[^,]+,\s*"(\w+)"', re.DOTALL)
_NOTED_EITHER = re.compile(r'"(\w+)" if [^,]+ else "(\w+)"')
_REASON = re.compile(r'Condition\(\s*\w+,\s*Status\.\w+,\s*"(\w+)"', re.DOTALL)


def missing(names: set[str]) -> set[str]:
    return {name for name in names if f"`{name}`" not in PAGE}


def test_every_metric_is_on_the_page() -> None:
    names = {
        next(iter(found.describe())).name + ("_total" if isinstance(found, Counter) else "")
        for found in vars(metrics).values()
        if isinstance(found, MetricWrapperBase)
    }
    assert len(names) > 10
    assert missing(names) == set()


def test_every_event_is_on_the_page() -> None:
    sources = [path.read_text() for path in SOURCES.glob("*.py")]
    noted = {reason for source in sources for reason in _NOTED.findall(source)}
    either = _NOTED_EITHER.findall(
        (SOURCES / "reconciler.py").read_text() + (SOURCES / "actions.py").read_text()
    )
    noted |= {reason for pair in either for reason in pair}
    assert {"Failed", "Retried", "ScaledUp", "WorkerDead"} <= noted
    assert missing(noted) == set()


def test_every_condition_and_its_reasons_are_on_the_page() -> None:
    source = (SOURCES / "conditions.py").read_text()
    reasons = set(_REASON.findall(source))
    assert {"WorkersReady", "ModelNotFound", "Connected"} <= reasons
    assert missing(reasons) == set()
