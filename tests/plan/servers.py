"""The machines and datasets of the published tables, read literally: Gb/s = 1e9/8 B/s, KB = 1000 B, GB = 1e9 B."""

from headrace.plan.parameters import Parameters

GBIT = 1e9 / 8
SERVERS = {
    "in-house": {
        "t_gpu": 4550,
        "t_da": 2132,
        "t_a": 4050,
        "b_nic": 10 * GBIT,
        "b_pcie": 32e9,
        "b_cache": 10 * GBIT,
        "b_storage": 500e6,
        "s_cache": 115e9,
    },
    "aws": {
        "t_gpu": 9989,
        "t_da": 3432,
        "t_a": 6520,
        "b_nic": 10 * GBIT,
        "b_pcie": 32e9,
        "b_cache": 10 * GBIT,
        "b_storage": 256e6,
        "s_cache": 400e9,
    },
    "azure": {
        "t_gpu": 14301,
        "t_da": 9783,
        "t_a": 12930,
        "b_nic": 80 * GBIT,
        "b_pcie": 64e9,
        "b_cache": 30 * GBIT,
        "b_storage": 250e6,
        "s_cache": 400e9,
    },
}
DATASETS = {"imagenet-1k": (1.3e6, 114.62e3), "openimages": (1.9e6, 315.84e3), "imagenet-22k": (14e6, 91.39e3)}


def parameters(dataset: str, server: str, nodes: int = 1, **others: float) -> Parameters:
    samples, size = DATASETS[dataset]
    known = SERVERS[server] | {"n_total": samples, "s_data": size, "m": 5.12, "n": nodes}
    return Parameters.of(known | others)
