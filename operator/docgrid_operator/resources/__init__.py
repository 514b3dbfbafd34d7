"""What a pool of workers consists of: pure functions from an IndexingWorker to Kubernetes objects.

A builder that returns None says that the object should not exist. No clock, random number or generated name
enters: the same IndexingWorker always gives the same objects.
"""

from docgrid_operator.resources.children import WorkerDefaults, build_children

__all__ = ["WorkerDefaults", "build_children"]
