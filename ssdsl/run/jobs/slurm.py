"""The batch file of a Slurm job: srun starts one torchrun on each node."""

import shlex

from ssdsl.run.jobs.job import WARNED_S, Job, stoppable

# Slurm signals the script alone (`B:`). It passes that on to the tasks, which save, and has itself queued again.
REQUEUED = """stop() { stopped=1 again=1; scancel --signal=USR1 "$SLURM_JOB_ID"; }  # to the tasks, not to this script
trap stop USR1 TERM"""
AGAIN = """ &
tasks=$! again=1
while [ -n "$again" ]; do again=; wait "$tasks" && status=0 || status=$?; done
if [ -n "${stopped:-}" ] && [ "$status" -eq 0 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status\""""


def slurm_text(job: Job) -> str:
    """A file for `sbatch`. The first host of the job serves the rendezvous; nodes are numbered as in Slurm.

    A job with `requeue` has the time limit's signal sent to the script, and appends to its log when it starts again.
    """
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
    if job.requeue:
        lines += ["#SBATCH --requeue", "#SBATCH --open-mode=append", f"#SBATCH --signal=B:USR1@{WARNED_S}"]
    # expanded by each task's own shell
    task = " ".join(job.torchrun('"$SLURM_NODEID"', f'"$HEAD:{job.port}"'))
    command = f"{task} {job.quoted_program()}"
    script = f'{stoppable(command)}exit "$status"' if job.requeue else f"exec {command}"
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
            *([REQUEUED] if job.requeue else []),
            f"srun --kill-on-bad-exit=1 --cpu-bind=none --label bash -c {shlex.quote(script)}"
            + (AGAIN if job.requeue else ""),
            "",
        ]
    )
