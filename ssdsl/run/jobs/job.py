"""A job: what a scheduler has to start, and the resources it needs."""

import shlex
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """A program (a script and its arguments) on so many nodes with so many processes each; one GPU per process, if any.

    Schedulers restart nothing by themselves; torchrun restarts all processes, up to `max_restarts` times. `time_limit`,
    `partition`, `account` are Slurm's, `image`, `claim` and `folder` Kubernetes'.
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
