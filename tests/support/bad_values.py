"""Values of the chart that have to be refused, each with the path that the refusal names and a word of its rule."""

from dataclasses import dataclass
from typing import Any

from support.chart import DATABASE, POOL


@dataclass(frozen=True, slots=True)
class Bad:
    """Values that are wrong in one place."""

    name: str
    values: dict[str, Any]
    path: str
    rule: str

    def __str__(self) -> str:
        return self.name


def bad(name: str, path: str, rule: str, **values: Any) -> Bad:
    """Return bad values whose other parts are right."""
    return Bad(name, {**DATABASE, **values}, path, rule)


def bad_pool(name: str, path: str, rule: str, **fields: Any) -> Bad:
    """Return values with a pool that is wrong in one field."""
    return bad(name, f"'/indexingWorkers/p{path}'", rule, indexingWorkers={"p": {**POOL, **fields}})


SECRET = {"secretName": "docgrid-database"}
LONG = "a-name-that-is-one-letter-longer-than-a-pools-may-be"

WITHOUT_MODEL = {name: part for name, part in POOL.items() if name != "model"}

BAD = (
    Bad("no database", {}, "database.secretName", "name the Secret"),
    Bad("an empty secret", {"database": {"secretName": ""}}, "database.secretName", "kubectl create secret"),
    Bad("a password", {"database": {**SECRET, "url": "postgresql://u:p@h/d"}}, "'/database'", "'url' not allowed"),
    Bad("a secret's bad name", {"database": {"secretName": "My_Secret"}}, "'/database/secretName'", "pattern"),
    Bad("an empty key", {"database": {**SECRET, "secretKey": ""}}, "'/database/secretKey'", "pattern"),
    bad("a misspelt section", "''", "'metric' not allowed", metric={}),
    bad("a misspelt value", "'/views'", "'limits' not allowed", views={"limits": 5}),
    bad("two operators", "'/replicas'", "must be 1", replicas=2),
    bad("no operator", "'/replicas'", "must be 1", replicas=0),
    bad("a number as tag", "'/image/tag'", "want string", image={"tag": 1.5}),
    bad("a short digest", "'/image/digest'", "pattern", image={"digest": "sha256:12"}),
    bad("a tag in the repository's place", "'/image/repository'", "pattern", image={"repository": "a b"}),
    bad("a pull policy", "'/image/pullPolicy'", "'IfNotPresent'", image={"pullPolicy": "always"}),
    bad("pull secrets as texts", "'/imagePullSecrets/0'", "want object", imagePullSecrets=["registry"]),
    bad("text for true", "'/crds/enabled'", "want boolean", crds={"enabled": "yes"}),
    bad("namespaces as text", "'/watchNamespaces'", "want array", watchNamespaces="team-a"),
    bad("a namespace's bad name", "'/watchNamespaces/1'", "pattern", watchNamespaces=["a", "*"]),
    bad("a namespace twice", "'/watchNamespaces'", "equal", watchNamespaces=["a", "a"]),
    bad("all and some", "watchNamespaces:", "watchAllNamespaces", watchNamespaces=["a"], watchAllNamespaces=True),
    bad("too many views", "'/views/limit'", "maximum", views={"limit": 5001}),
    bad("half a view", "'/views/limit'", "want integer", views={"limit": 0.5}),
    bad("no writes", "'/views/writesPerSecond'", "minimum", views={"writesPerSecond": 0}),
    bad("a bare number of seconds", "'/intervals/resync'", "want string", intervals={"resync": 60}),
    bad("a duration of nothing", "'/intervals/status'", "pattern '[1-9]'", intervals={"status": "0s"}),
    bad("days", "'/retention/keepIndexed'", "pattern", retention={"keepIndexed": "7d"}),
    bad("too much jitter", "'/retries/jitter'", "maximum", retries={"jitter": 1.5}),
    bad("a level", "'/log/level'", "'WARNING'", log={"level": "warn"}),
    bad("a variable's number", "'/extraEnv/0/value'", "want string", extraEnv=[{"name": "A", "value": 1}]),
    bad("a variable without name", "'/extraEnv/0'", "'name'", extraEnv=[{"value": "1"}]),
    bad(
        "a variable of the chart's own",
        "extraEnv[1].name",
        "DOCGRID_LOG_LEVEL",
        extraEnv=[{"name": "A"}, {"name": "DOCGRID_LOG_LEVEL", "value": "DEBUG"}],
    ),
    bad("a variable of workers", "extraEnv[0].name", "IndexingWorker", extraEnv=[{"name": "DOCGRID_STORAGE_REGION"}]),
    bad("a pooler", "migrations.secretName:", "PostgreSQL itself", database={**SECRET, "pooler": True}),
    bad("a volume of the chart's own", "extraVolumes", "tmp", extraVolumes=[{"name": "tmp"}]),
    bad("a mount without path", "'/extraVolumeMounts/0'", "'mountPath'", extraVolumeMounts=[{"name": "a"}]),
    bad("a negative limit", "'/resources/limits/cpu'", "minimum", resources={"limits": {"cpu": -1}}),
    bad("a misspelt resource list", "'/resources'", "'limit' not allowed", resources={"limit": {}}),
    bad("a label's number", "'/podLabels/a'", "want string", podLabels={"a": 1}),
    bad("a label with spaces", "'/nodeSelector/a'", "pattern", nodeSelector={"a": "b c"}),
    bad("tolerations as a map", "'/tolerations'", "want array", tolerations={"operator": "Exists"}),
    bad("a misspelt affinity", "'/affinity'", "'nodeafinity' not allowed", affinity={"nodeafinity": {}}),
    bad("a peer", "'/networkPolicy/metricsFrom/0'", "not allowed", networkPolicy={"metricsFrom": [{"pods": {}}]}),
    bad("a scrape interval", "'/metrics/podMonitor/interval'", "pattern", metrics={"podMonitor": {"interval": "30"}}),
    bad("a short bucket", "'/test/bucket'", "minLength", test={"bucket": "b"}),
    bad("a pool's long name", f"indexingWorkers.{LONG}", "at most 50", indexingWorkers={LONG: POOL}),
    bad("a pool's bad name", "indexingWorkers.Small", "lower-case", indexingWorkers={"Small": POOL}),
    bad("a pool without spec", "'/indexingWorkers/p'", "want object", indexingWorkers={"p": None}),
    bad("a pool without model", "'/indexingWorkers/p'", "'model'", indexingWorkers={"p": WITHOUT_MODEL}),
    bad_pool("a misspelt field of a pool", "", "'replica' not allowed", replica=2),
    bad_pool("a misspelt field below", "/embedding", "'url' not allowed", embedding={"url": "http://e"}),
    bad_pool("a negative pool", "/replicas", "minimum", replicas=-1),
    bad_pool("a provider", "/embedding/provider", "'builtin'", embedding={"provider": "local"}),
    bad_pool("a lease in seconds", "/lease/duration", "want string", lease={"duration": 300}),
    bad_pool("a storage without secret", "/storage", "'secretRef'", storage={"endpoint": "minio:9000"}),
)  # fmt: skip
