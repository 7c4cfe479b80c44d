"""The batch file of a Slurm job: srun starts one torchrun on each node."""

import shlex

from ssdsl.run.jobs.job import Job


def slurm_text(job: Job) -> str:
    """A file for `sbatch`. The first host of the job serves the rendezvous; nodes are numbered as in Slurm."""
    options = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": job.per_node if job.gpus else None,
        "time": job.time_limit,
        "partition": job.partition,
        "account": job.account,
        "output": "%x-%j.log",
    }
    given = {name: shlex.quote(str(value)) for name, value in options.items() if value not in (None, "")}
    lines = [f"#SBATCH --{name}={value}" for name, value in given.items()]  # sbatch splits lines at spaces, as a shell
    lines.append("#SBATCH --exclusive")  # the one task of a node gets all processors
    # expanded by each task's own shell
    task = " ".join(job.torchrun('"$SLURM_NODEID"', f'"$HEAD:{job.port}"'))
    script = f"exec {task} {job.quoted_program()}"
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            "",
            f"# {job.processes} processes, {job.per_node} on each node; submit with: sbatch FILE",
            "set -euo pipefail",
            'cd "${SLURM_SUBMIT_DIR:-.}"',
            'HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST")',
            "export HEAD=${HOSTS%%$'\\n'*}",
            'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"',
            "",
            "# a task that fails ends the others: no process stays behind",
            f"srun --kill-on-bad-exit=1 --cpu-bind=none --label bash -c {shlex.quote(script)}",
            "",
        ]
    )
