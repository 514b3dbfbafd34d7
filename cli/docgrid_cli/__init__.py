"""The command line of DocGrid, and the local stack that it can run."""
