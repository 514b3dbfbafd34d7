"""Specs of IndexingWorkers for hypothesis: whatever the apiserver admits, without a pod template."""

from datetime import timedelta

from hypothesis import strategies as st

from docgrid_core.durations import format_duration
from docgrid_operator.kinds import Object


@st.composite
def specs(draw: st.DrawFn) -> Object:
    """Draw a spec that the apiserver admits, without a pod template."""
    polling, idle = sorted(draw(st.tuples(_MILLISECONDS, _MILLISECONDS)))
    renewal, lease = draw(_TWO_DISTINCT)
    beat, dead = draw(_TWO_DISTINCT)
    overlap, size = draw(_OVERLAP_AND_SIZE)
    return {
        **draw(_REST),
        "polling": {"interval": _duration(polling), "idleMaxInterval": _duration(idle)},
        "lease": {"renewalInterval": _duration(renewal), "duration": _duration(lease)},
        "heartbeat": {"interval": _duration(beat), "deadThreshold": _duration(dead)},
        "chunking": {"overlap": overlap, "size": size},
    }


def _duration(milliseconds: int) -> str:
    return format_duration(timedelta(milliseconds=milliseconds))


_MILLISECONDS = st.integers(1, 10**9)
_TWO_DISTINCT = st.lists(_MILLISECONDS, min_size=2, max_size=2, unique=True).map(sorted)
_OVERLAP_AND_SIZE = st.lists(st.integers(0, 100_000), min_size=2, max_size=2, unique=True).map(sorted)
_NAMES = st.sampled_from(["a", "docgrid-database", "x0.y-1"])
# What a kubelet would expand, and what a shell or YAML would, is text like any other.
_TEXTS = st.sampled_from(
    ["intfloat/e5", "$(HOME)", "$$(HOME)", "a$b$$", "${x}", "'\"#: é語", "2.0", "true", "~"]
)
_EMBEDDINGS = st.fixed_dictionaries(
    {
        "provider": st.sampled_from(["openai", "builtin"]),
        "baseUrl": st.sampled_from(["http://e5:8000", "https://e.example/$(KEY)/%20?a=b#c"]),
        "batchSize": st.integers(1, 2048),
        "maxCodePoints": st.integers(1, 2**40),
        "concurrency": st.integers(1, 256),
        "readTimeout": _MILLISECONDS.map(_duration),
    },
    optional={"apiKeySecretRef": st.fixed_dictionaries({"name": _NAMES})},
)
_OPTIONAL: Object = {
    "image": _NAMES,
    "resources": st.just({"limits": {"memory": "1Gi"}}),
    "disruptionBudget": st.sampled_from([{"minAvailable": 0}, {"maxUnavailable": "50%"}]),
}
_ALWAYS: Object = {
    "replicas": st.integers(0, 2**31 - 1),
    "suspend": st.booleans(),
    "model": st.fixed_dictionaries({"name": _TEXTS}, optional={"version": _TEXTS}),
    "embedding": _EMBEDDINGS,
    "concurrency": st.integers(1, 256),
    "shutdownGracePeriod": st.integers(0, 10**9).map(_duration),
    "database": st.fixed_dictionaries({"secretRef": st.fixed_dictionaries({"name": _NAMES})}),
    "storage": st.fixed_dictionaries(
        {
            "endpoint": st.just("minio:9000"),
            "region": _TEXTS,
            "secure": st.booleans(),
            "secretRef": st.fixed_dictionaries({"name": _NAMES}),
        }
    ),
    "parsing": st.fixed_dictionaries({"maxFileSize": st.integers(1, 2**40)}),
}
_REST = st.fixed_dictionaries(_ALWAYS, optional=_OPTIONAL)
