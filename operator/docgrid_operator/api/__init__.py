"""The operator's own kinds of Kubernetes objects, a package for each version of their API."""
