"""A job: what a scheduler has to start, on how many nodes, and torchrun's command for each."""

import shlex
from dataclasses import dataclass

from ssdsl.cluster.cluster import Cluster
from ssdsl.run.errors import JobMisfit
from ssdsl.text.diagnostic import PlanError


@dataclass(frozen=True, slots=True)
class Job:
    """A program (a script and its arguments) on so many nodes with so many processes each; one GPU per process, if any.

    Schedulers restart nothing by themselves; torchrun restarts all processes, up to `max_restarts` times. `time_limit`,
    `partition`, `account` are Slurm's, `image`, `claim` and `folder` Kubernetes'. `requeue`: the scheduler stops the
    job before its time is over, or if others need the machines, and starts it again; then the program goes on.
    """

    name: str
    program: tuple[str, ...]
    nodes: int
    per_node: int
    gpus: bool = True
    max_restarts: int = 0
    port: int = 29500
    time_limit: str = "01:00:00"
    partition: str = ""
    account: str = ""
    image: str = "pytorch/pytorch:latest"
    claim: str = ""
    folder: str = "/workspace"
    requeue: bool = False

    @property
    def processes(self) -> int:
        """The number of training processes."""
        return self.nodes * self.per_node

    def torchrun(self, node: str, endpoint: str) -> list[str]:
        """The torchrun command on one of the nodes, up to the program; for a single node torchrun finds the port
        itself."""
        words = ["torchrun", f"--nproc-per-node={self.per_node}"]
        if self.nodes == 1:
            words.append("--standalone")
        else:
            words += [f"--nnodes={self.nodes}", f"--node-rank={node}", "--rdzv-backend=static"]
            words.append(f"--rdzv-endpoint={endpoint}")
        return words + ([f"--max-restarts={self.max_restarts}"] if self.max_restarts else [])

    def quoted_program(self) -> str:
        """The program quoted for a shell."""
        return shlex.join(self.program)


WARNED_S = 120  # so long before its end a job is asked to save

# What asks for an end goes to the ranks alone, which are torchrun's children: torchrun would give them 30 s. Behind a
# process's name, /proc has its state and its parent. Not every image has pkill. A signal ends a `wait` too early, also
# when torchrun has ended already: the next one has its status.
STOPPABLE = """stop() {{
    stopped=1 again=1
    for stat in /proc/[0-9]*/stat; do
        read -r line 2>/dev/null <"$stat" || continue
        set -- ${{line##*) }}
        [ "$2" != "$torchrun" ] || kill -TERM "${{stat//[!0-9]/}}"
    done
}}
trap stop TERM USR1
{command} & torchrun=$! again=1
while [ -n "$again" ]; do again=; wait "$torchrun" && status=0 || status=$?; done
"""


def stoppable(command: str) -> str:
    """The lines of a shell that run torchrun to its end, in `status`. SIGTERM and SIGUSR1 ask the ranks to save and to
    end, and set `stopped`."""
    return STOPPABLE.format(command=command)


DEFAULT_PER_NODE = 8  # devices of a node, if unknown


def fit(processes: int, nodes: int | None, per_node: int | None, cluster: Cluster | None) -> tuple[int, int]:
    """Nodes, and processes on each, that make `processes`. Raises PlanError if there are none.

    >>> fit(16, None, None, None), fit(4, None, None, None), fit(12, 2, None, None)
    ((2, 8), (1, 4), (2, 6))
    """
    most = DEFAULT_PER_NODE
    if cluster is not None:
        cluster.check_size(processes)
        most = processes if cluster.shares_cores else min(group.per_node for group in cluster.groups)
    if per_node is None:
        per_node = min(most, processes) if nodes is None else -(-processes // nodes)
    elif cluster is not None and per_node > most:
        raise PlanError(
            JobMisfit.of(processes, nodes, per_node, most, f"a node of `{cluster.name}` has {most} devices")
        )
    if nodes is None:
        nodes = -(-processes // per_node)
    if nodes * per_node != processes or (cluster is not None and per_node > most):
        raise PlanError(JobMisfit.of(processes, nodes, per_node, most, "each node starts equally many processes"))
    return nodes, per_node


def torchrun_text(job: Job) -> str:
    """One line; for several nodes with two variables to set on each."""
    if job.nodes == 1:
        return f"{' '.join(job.torchrun('0', ''))} {job.quoted_program()}\n"
    command = " ".join(job.torchrun('"$NODE_RANK"', f'"$HEAD:{job.port}"'))
    return (
        f"# on each of {job.nodes} nodes: HEAD is the name of the first, NODE_RANK counts them from 0\n"
        f"HEAD=node0 NODE_RANK=0; {command} {job.quoted_program()}\n"
    )
