"""A Ray cluster on loopback, in a process of its own: ``python -m tests.remote.cluster FOLDER`` until stdin is closed.

Says in one line of JSON where it is. Nodes are told apart by a resource: ``head``, ``left`` and ``right``.
"""

import json
import os
import sys

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # or 127.0.0.1 is exchanged for the host's own address
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray._private.utils
from ray.cluster_utils import Cluster

MEMORY = 78 << 20


def main(folder: str) -> None:
    """Start it, say where, wait, end it."""
    ray._private.utils.write_ray_address = lambda *_, **__: None  # a file that all of the machine shares
    common = {
        "node_ip_address": "127.0.0.1",
        "object_store_memory": MEMORY,
        "include_log_monitor": False,
        "no_monitor": True,
        "min_worker_port": 0,
        "max_worker_port": 0,
    }
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            **common,
            "num_cpus": 2,
            "resources": {"head": 100},
            "include_dashboard": False,
            "temp_dir": folder,
        },
    )
    nodes = {"head": cluster.head_node}
    for name in ("left", "right"):
        nodes[name] = cluster.add_node(**common, num_cpus=8, resources={name: 100}, wait=False)
    cluster.wait_for_nodes()
    print(json.dumps({"address": cluster.address, "folder": folder}), flush=True)
    for line in sys.stdin:
        order, name = line.split()
        if order == "remove":
            cluster.remove_node(nodes.pop(name), allow_graceful=False)
        print(json.dumps({"done": order}), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
