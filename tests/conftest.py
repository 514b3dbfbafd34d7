"""What every layer of tests shares: the order and the table of layers, the leak check, servers, clusters, databases.

Hypothesis profiles: `default` draws new examples on every run, to find what nobody thought of; `ci`, used
when CI=true, draws the same ones every time, so that no change is refused by chance.
"""

import os
import signal

from hypothesis import HealthCheck, settings

pytest_plugins = [
    "pytester",
    "support.layers",
    "support.leaks",
    "support.servers",
    "support.database",
    "support.cluster.fixtures",
]

# No deadlines and no complaint about slow data: on a busy machine both fail tests that are right.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")

# A run that a shell started in the background ignores SIGINT, and so would every process that a test starts and
# then interrupts; a signal that is handled here is at its default there.
signal.signal(signal.SIGINT, signal.default_int_handler)
