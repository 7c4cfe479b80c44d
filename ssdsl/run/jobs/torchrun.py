"""The plain torchrun command, to be typed on each node."""

from ssdsl.run.jobs.job import Job


def torchrun_text(job: Job) -> str:
    """One line; for several nodes with two variables to set on each."""
    if job.nodes == 1:
        return f"{' '.join(job.torchrun('0', ''))} {job.quoted_program()}\n"
    command = " ".join(job.torchrun('"$NODE_RANK"', f'"$HEAD:{job.port}"'))
    return (
        f"# on each of {job.nodes} nodes: HEAD is the name of the first, NODE_RANK counts them from 0\n"
        f"HEAD=node0 NODE_RANK=0; {command} {job.quoted_program()}\n"
    )
