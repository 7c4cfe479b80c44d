"""The manifest of a PyTorchJob (Kubeflow), whose operator tells torchrun which node it is on.

The operator sets PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT in each pod, and
torchrun reads each of its options from such a variable (Kubeflow's training operator 1.7 and later).
"""

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from ssdsl.run.jobs.job import WARNED_S, Job, stoppable

RESTARTS = 100  # how often a job with `requeue` is started again, at most


def kubernetes_text(job: Job) -> str:
    """A file for `kubectl apply -f`."""
    replicas = {"Master": _replica(job, 1)}
    if job.nodes > 1:
        replicas["Worker"] = _replica(job, job.nodes - 1)
    manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": resource_name(job.name)},
        "spec": {
            "nprocPerNode": str(job.per_node),
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": RESTARTS if job.requeue else 0},
            "pytorchReplicaSpecs": replicas,
        },
    }
    head = f"# {job.processes} processes, {job.per_node} in each pod; submit with: kubectl apply -f FILE\n"
    return head + yaml_text(manifest)


def _replica(job: Job, count: int) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "pytorch",  # the operator looks for a container of this name
        "image": job.image,
        "workingDir": job.folder,
        "command": [word.replace("$", "$$") for word in _command(job)],  # no $(VARIABLE)
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
    }
    if job.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": job.per_node}}
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    volumes: list[dict[str, Any]] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    if job.claim:
        mounts.append({"name": "programs", "mountPath": job.folder})
        volumes.append({"name": "programs", "persistentVolumeClaim": {"claimName": job.claim}})
    container["volumeMounts"] = mounts
    spec: dict[str, Any] = {"containers": [container], "volumes": volumes}
    if job.requeue:
        spec["terminationGracePeriodSeconds"] = WARNED_S
    return {"replicas": count, "restartPolicy": "ExitCode" if job.requeue else "Never", "template": {"spec": spec}}


def _command(job: Job) -> list[str]:
    """The words of a container's command. A pod that was asked to stop, and has saved, ends with status 143: with
    `ExitCode` the operator starts pods again whose status is 128 or more, and no others."""
    restarts = [f"--max-restarts={job.max_restarts}"] if job.max_restarts else []
    words = ["torchrun", *restarts, *job.program]
    if not job.requeue:
        return words
    return ["bash", "-c", f'{stoppable(shlex.join(words))}[ -z "${{stopped:-}}" ] || status=143\nexit "$status"']


def resource_name(name: str) -> str:
    """A valid Kubernetes name: small letters, digits and hyphens, at most 63, first a letter.

    >>> resource_name("My_Plan.v2"), resource_name("1f1b")
    ('my-plan-v2', 'job-1f1b')
    """
    found = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "job"
    found = found if found[0].isalpha() else f"job-{found}"
    return found[:50].rstrip("-")


PLAIN = re.compile(r"[A-Za-z/][\w./-]*")
WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}  # texts that YAML reads as another type


def yaml_text(data: Any) -> str:
    """A document of mappings, lists, texts, numbers and booleans.

    >>> print(yaml_text({"kind": "Job", "args": ["-n", "8"], "spec": {"replicas": 2}}), end="")
    kind: Job
    args:
      - "-n"
      - "8"
    spec:
      replicas: 2
    """
    return "\n".join(_lines(data)) + "\n"


def _lines(data: Any) -> Iterator[str]:
    match data:
        case dict():
            for key, value in data.items():
                yield from _entry(f"{_scalar(key)}:", value)
        case list() | tuple():
            for value in data:
                inner = list(_lines(value)) if isinstance(value, dict | list | tuple) and value else [_scalar(value)]
                yield f"- {inner[0]}"
                yield from (f"  {line}" for line in inner[1:])
        case _:
            yield _scalar(data)


def _entry(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict | list | tuple) and value:
        yield key
        yield from (f"  {line}" for line in _lines(value))
    else:
        yield f"{key} {_scalar(value)}"


def _scalar(value: Any) -> str:
    """A value on one line. A text that YAML could misread is quoted as in JSON, which YAML reads too."""
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in WORDS:
        return value
    return json.dumps(value)
