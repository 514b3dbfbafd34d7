"""`docgrid.dev/v1alpha1`: what a person writes and reads with kubectl.

The models are the one definition: the operator parses objects with them, and tools/generate_crds.py makes the
CustomResourceDefinitions and their page from them.
"""

from docgrid_operator.api.v1alpha1.indexing_job import IndexingJob
from docgrid_operator.api.v1alpha1.indexing_worker import IndexingWorker
from docgrid_operator.api.v1alpha1.model import InvalidObject

__all__ = ["IndexingJob", "IndexingWorker", "InvalidObject"]
