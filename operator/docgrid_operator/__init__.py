"""The operator: IndexingWorkers reconciled, workers watched, leases recovered, jobs shown in Kubernetes.

`docgrid-operator` (`__main__`) is its entry; `docs/design/operator.md` explains its loops.
"""
