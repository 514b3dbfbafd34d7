"""IndexingWorker: a pool of equal workers for one embedding model.

Each field becomes a setting of the worker's processes (`docgrid_operator.resources.environment`) and has its
default from there. The string below a field is what `kubectl explain` says; an object without one is described by
its class.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from docgrid_core.settings import (
    ChunkingSettings,
    EmbeddingSettings,
    ParsingSettings,
    StorageSettings,
    WorkerSettings,
)
from docgrid_operator.api.v1alpha1.fields import (
    MAX_INT32,
    Address,
    ContainerResources,
    Endpoint,
    GracePeriod,
    ImageName,
    Interval,
    NumberOrPercentage,
    SecretKey,
    SecretName,
    Text,
)
from docgrid_operator.api.v1alpha1.model import ApiModel, Resource, Rule, at_most, less_than, setting
from docgrid_operator.api.v1alpha1.pod_template import PodTemplate

MAX_NAME = 50
"""The name of a pod adds its ReplicaSet's hash and its own, and still has to fit into a label."""


class Model(ApiModel):
    """The embedding model whose jobs the pool takes; `docgrid models list` shows those of the database."""

    name: Text
    """Name of the model, as the embedding server knows it."""
    version: Annotated[str, Field(min_length=1, max_length=255)] = ""
    """Version, needed only if the database has several of that name."""


class ApiKeySecretRef(ApiModel):
    """The Secret with the embedding server's API key."""

    name: SecretName
    """Name of the Secret, in the namespace of the IndexingWorker."""
    key: SecretKey = "api-key"
    """Key within the Secret."""


class Embedding(ApiModel):
    """Who turns text into vectors, and how it is called."""

    provider: Literal["openai", "builtin"] = setting(EmbeddingSettings, "provider")
    """openai: any server with OpenAI's embeddings call; builtin: a small model in process, for tests."""
    base_url: Address = ""
    """Root of the embedding server, without /v1; required for openai."""
    api_key_secret_ref: ApiKeySecretRef | None = None
    """The Secret with the API key; without one, none is sent."""
    batch_size: int = setting(EmbeddingSettings, "batch_size")
    """Most texts in one request."""
    max_code_points: int = setting(EmbeddingSettings, "max_code_points")
    """Most Unicode code points in one request."""
    concurrency: int = setting(EmbeddingSettings, "concurrency")
    """Most requests at once of one worker."""
    read_timeout: Interval = setting(EmbeddingSettings, "read_timeout")
    """Longest wait for the next part of an answer."""

    rules: ClassVar = (
        Rule(
            field="base_url",
            cel="self.provider != 'openai' || has(self.baseUrl)",
            message="must be the root of the server, such as http://embeddings:8000, when provider is openai",
            reason="FieldValueRequired",
            holds=lambda embedding: embedding.provider != "openai" or embedding.base_url,
        ),
    )


class Polling(ApiModel):
    """How often a worker with a free slot looks for jobs, if nothing wakes it."""

    interval: Interval = setting(WorkerSettings, "polling_interval")
    """First wait after an empty poll; it doubles from there."""
    idle_max_interval: Interval = setting(WorkerSettings, "idle_max_polling_interval")
    """Longest wait between polls."""

    rules: ClassVar = (at_most("interval", "idle_max_interval"),)


class Lease(ApiModel):
    """How long a worker owns a job that it claimed, unless it renews its claim."""

    duration: Interval = setting(WorkerSettings, "lease_duration")
    """How long a claim or a renewal holds."""
    renewal_interval: Interval = setting(WorkerSettings, "lease_renewal_interval")
    """How often held leases are renewed; less than duration."""

    rules: ClassVar = (less_than("renewal_interval", "duration"),)


class Heartbeat(ApiModel):
    """How the end of a worker is noticed when its pod's end is not."""

    interval: Interval = setting(WorkerSettings, "heartbeat_interval")
    """How often a worker says that it lives; less than deadThreshold."""
    dead_threshold: Interval = setting(WorkerSettings, "dead_threshold")
    """A worker whose heartbeat is as old as this is DEAD, and its jobs go to others."""

    rules: ClassVar = (less_than("interval", "dead_threshold"),)


class DatabaseSecretRef(ApiModel):
    """The Secret with the database's address."""

    name: SecretName
    """Name of the Secret, in the namespace of the IndexingWorker."""
    key: SecretKey = "url"
    """Key of postgresql://user:password@host:port/database."""


class Database(ApiModel):
    """The database of the installation: the same one as the operator's."""

    secret_ref: DatabaseSecretRef
    """The Secret with the database's address."""


class StorageSecretRef(ApiModel):
    """The Secret with the credentials of the S3 server."""

    name: SecretName
    """Name of the Secret, in the namespace of the IndexingWorker."""
    access_key_key: SecretKey = "access-key"
    """Key of the access key id."""
    secret_key_key: SecretKey = "secret-key"  # noqa: S105 - the name of a key
    """Key of the secret access key."""


class Storage(ApiModel):
    """The S3 server that holds the documents' bytes."""

    endpoint: Endpoint
    """Host and port, without scheme: minio:9000."""
    region: Text = setting(StorageSettings, "region")
    """Region that requests are signed for."""
    secure: bool = setting(StorageSettings, "secure")
    """Whether the server speaks TLS."""
    secret_ref: StorageSecretRef
    """The Secret with the credentials."""


class Chunking(ApiModel):
    """How text is cut, in Unicode code points. A change counts for documents that are parsed after it."""

    size: int = setting(ChunkingSettings, "size")
    """Longest chunk."""
    overlap: int = setting(ChunkingSettings, "overlap")
    """How much of a chunk the next one of its section repeats; less than size."""

    rules: ClassVar = (less_than("overlap", "size"),)


class Parsing(ApiModel):
    """Limits on what is read of a document."""

    max_file_size: int = setting(ParsingSettings, "max_file_size")
    """Largest document, in bytes; a larger one fails."""


class DisruptionBudget(ApiModel):
    """How many workers a drain of nodes leaves running; one of the two. Without it, no limit is set."""

    min_available: NumberOrPercentage | None = None
    """Workers, or the part of them (such as 50%), that have to stay."""
    max_unavailable: NumberOrPercentage | None = None
    """Workers, or the part of them (such as 25%), that may be away."""

    rules: ClassVar = (
        Rule(
            field="",
            cel="has(self.minAvailable) != has(self.maxUnavailable)",
            message="must have one of minAvailable and maxUnavailable, and not both",
            holds=lambda budget: (budget.min_available is None) != (budget.max_unavailable is None),
        ),
    )


class IndexingWorkerSpec(ApiModel):
    """What the pool should be."""

    replicas: Annotated[int, Field(ge=0, le=MAX_INT32)] = 1
    """Workers. kubectl scale and a HorizontalPodAutoscaler write it."""
    suspend: bool = False
    """Stop all workers, and remember replicas. Running jobs are given back, waiting ones wait."""
    image: ImageName = ""
    """Image of the workers; if left out, the operator's own."""
    model: Model
    embedding: Embedding
    concurrency: int = setting(WorkerSettings, "max_concurrency")
    """Jobs that one worker runs at a time."""
    polling: Polling = Polling()
    lease: Lease = Lease()
    heartbeat: Heartbeat = Heartbeat()
    shutdown_grace_period: GracePeriod = setting(WorkerSettings, "shutdown_grace_period")
    """Time that running jobs get when a worker is told to stop; what is left then is given back."""
    database: Database
    storage: Storage
    chunking: Chunking = Chunking()
    parsing: Parsing = Parsing()
    disruption_budget: DisruptionBudget | None = None
    resources: ContainerResources | None = None
    """Resources of a worker's container; if left out, what its concurrency needs."""
    pod_template: PodTemplate = Field(default_factory=dict)
    """Metadata and spec of a pod, laid over the operator's own: maps by key, lists of named things by name."""


class IndexingWorker(Resource):
    """A pool of equal workers that index documents with one embedding model."""

    spec: IndexingWorkerSpec

    rules: ClassVar = (
        Rule(
            field="metadata",
            cel=f"self.metadata.name.size() <= {MAX_NAME}",
            message=f"metadata.name must have at most {MAX_NAME} characters",
            holds=lambda pool: len(pool.metadata.name) <= MAX_NAME,
        ),
    )
