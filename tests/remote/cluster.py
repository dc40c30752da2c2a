"""A Ray cluster on loopback, in a process of its own until stdin is closed.

``python -m tests.remote.cluster FOLDER PLAN``: the plan is JSON, of each node, by name, its ``cpus`` and, where it is
bound to some, its ``cores``. A node has a resource of its own name. Says in one line of JSON where the cluster is and
what its processes are, and again after each order.
"""

import json
import os
import sys
from contextlib import contextmanager

import ray._private.utils
from ray.cluster_utils import Cluster

MEMORY = 78 << 20
COMMON = {
    "node_ip_address": "127.0.0.1",
    "object_store_memory": MEMORY,
    "include_log_monitor": False,
    "no_monitor": True,
    "min_worker_port": 0,
    "max_worker_port": 0,
}


@contextmanager
def bound(cores):
    """Processes that are started meanwhile run on these cores, if any are said."""
    before = os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class ClusterNodes:
    """The nodes, by name. The first one of the plan is the head."""

    def __init__(self, folder, plan):
        self.plan = plan
        (name, node), *others = plan.items()
        with bound(node.get("cores")):
            self.cluster = Cluster(
                initialize_head=True,
                head_node_args={
                    **COMMON,
                    "num_cpus": node["cpus"],
                    "resources": {name: 100},
                    "include_dashboard": False,
                    "temp_dir": folder,
                },
            )
        self.nodes = {name: self.cluster.head_node}
        for name, _ in others:
            self.add(name, wait=False)
        self.cluster.wait_for_nodes()

    def add(self, name, *, wait=True):
        node = self.plan[name]
        with bound(node.get("cores")):
            self.nodes[name] = self.cluster.add_node(**COMMON, num_cpus=node["cpus"], resources={name: 100}, wait=wait)

    def remove(self, name):
        """As an operator does it: the node says goodbye."""
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=True)

    def told(self):
        raylets = {name: _pid(node, "raylet") for name, node in self.nodes.items()}
        head = self.cluster.head_node
        return {"address": self.cluster.address, "raylets": raylets, "gcs": head and _pid(head, "gcs_server")}


def _pid(node, kind):
    found = node.all_processes.get(kind, [])
    return found[0].process.pid if found else None


def main(folder, plan):
    """Start it, say where, wait, end it."""
    ray._private.utils.write_ray_address = lambda *_, **__: None  # a file that all of the machine shares
    running = ClusterNodes(folder, json.loads(plan))
    print(json.dumps(running.told()), flush=True)
    for line in sys.stdin:
        order, name = line.split()
        getattr(running, order)(name)
        print(json.dumps(running.told()), flush=True)
    running.cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
