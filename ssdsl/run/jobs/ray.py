"""A script for `ray job submit`: Ray reserves the nodes, and runs torchrun once on each."""

from ssdsl.run.jobs.job import Job

SCRIPT = '''"""{job.processes} processes, {job.per_node} on each of {job.nodes} nodes, as a Ray job; submit with

    ray job submit --working-dir . -- python FILE
"""

import os
import socket
import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODES, PER_NODE = {job.nodes}, {job.per_node}
NEEDS = {needs}  # of each node
PROGRAM = {program}


@ray.remote(max_retries=0)
def address():
    """The first node's address, with a port that is free there."""
    with socket.socket() as found:
        found.bind(("", 0))
        return f"{{ray.util.get_node_ip_address()}}:{{found.getsockname()[1]}}"


@ray.remote(max_retries=0)
def torchrun(node, endpoint):
    """Runs this node's processes to their end; torchrun's exit status."""
    where = [f"--nnodes={{NODES}}", f"--node-rank={{node}}", "--rdzv-backend=static", f"--rdzv-endpoint={{endpoint}}"]
    options = [f"--nproc-per-node={{PER_NODE}}", "--max-restarts={job.max_restarts}", *where]
    environment = {{"OMP_NUM_THREADS": "1", **os.environ}}
    command = [sys.executable, "-m", "torch.distributed.run", *options, *PROGRAM]
    return subprocess.run(command, env=environment).returncode


def main():
    ray.init()
    nodes = placement_group([NEEDS] * NODES, strategy="STRICT_SPREAD")  # a bundle on each node
    ray.get(nodes.ready())

    def on(node, needs):
        strategy = PlacementGroupSchedulingStrategy(placement_group=nodes, placement_group_bundle_index=node)
        return {{"num_cpus": needs.get("CPU", 0), "num_gpus": needs.get("GPU", 0), "scheduling_strategy": strategy}}

    endpoint = ray.get(address.options(**on(0, {{"CPU": 1}})).remote())
    codes = ray.get([torchrun.options(**on(node, NEEDS)).remote(node, endpoint) for node in range(NODES)])
    sys.exit(max(abs(code) for code in codes))


if __name__ == "__main__":
    main()
'''


def ray_text(job: Job) -> str:
    """A Python file that needs only Ray."""
    needs = {"CPU": 1, "GPU": job.per_node} if job.gpus else {"CPU": job.per_node}
    return SCRIPT.format(job=job, needs=needs, program=list(job.program))
