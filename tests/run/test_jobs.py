"""The files for schedulers: they parse, say what was asked for, and start the processes that they should."""

import ast
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from ssdsl.cluster.load import load_cluster
from ssdsl.record import replace
from ssdsl.run.jobs.job import Job, fit, torchrun_text
from ssdsl.run.jobs.kubernetes import kubernetes_text, resource_name, yaml_text
from ssdsl.run.jobs.ray import ray_text
from ssdsl.run.jobs.slurm import slurm_text
from ssdsl.text.diagnostic import PlanError

# a process of a job: it leaves its rank, so that the test sees who has run
WORKER = "import os, sys; from pathlib import Path; Path(sys.argv[1], os.environ['RANK']).write_text(sys.argv[2])"
HERE = Path(__file__).parent


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "ran").mkdir()
    program = (str(tmp_path / "worker.py"), str(tmp_path / "ran"), "it's $HOME; two words")
    return Job("my plan", program, 2, 2, gpus=False, max_restarts=3, port=29631, partition="long")


def ran(tmp_path: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (tmp_path / "ran").iterdir()}


ALL = {str(rank): "it's $HOME; two words" for rank in range(4)}


def environment(tmp_path: Path, python: str, **more: str) -> dict[str, str]:
    """One in which programs of the test come first, and torchrun is this interpreter's."""
    tools = tmp_path / "bin"
    tools.mkdir(exist_ok=True)
    tool(tools / "torchrun", f'exec {shlex.quote(python)} -m torch.distributed.run "$@"')
    path = f"{tools}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **more}


def tool(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


# -- torchrun ----------------------------------------------------------------------------------------------------------


def test_torchrun_on_one_node() -> None:
    one = Job("p", ("main.py", "--steps", "3"), 1, 4)
    assert torchrun_text(one) == "torchrun --nproc-per-node=4 --standalone main.py --steps 3\n"


def test_torchrun_on_two_nodes_is_shell(job: Job) -> None:
    text = torchrun_text(job)
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)
    assert "--nnodes=2" in text and "--max-restarts=3" in text


# -- Slurm -------------------------------------------------------------------------------------------------------------


def test_slurm_options(job: Job) -> None:
    text = slurm_text(job)
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)
    lines = text.splitlines()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", text, re.M))
    assert lines[0] == "#!/bin/bash" and len(options) == sum(line.startswith("#SBATCH") for line in lines)
    assert lines[1 : len(options) + 1] == [line for line in lines if line.startswith("#SBATCH")]  # before any command
    assert options["nodes"] == "2" and options["ntasks-per-node"] == "1" and options["partition"] == "long"
    assert "gpus-per-node" not in options and "account" not in options
    assert options["job-name"] == "'my plan'" and options["output"] == "%x-%j.log"


def test_slurm_starts_all_processes(job: Job, tmp_path: Path, python: str) -> None:
    """With an srun that runs each task here, and tells it the number of its node."""
    env = environment(tmp_path, python, SLURM_JOB_NODELIST="n[1-2]", SLURM_SUBMIT_DIR=str(tmp_path))
    tool(tmp_path / "bin" / "scontrol", "echo localhost; echo other")
    body = """while [[ $1 == --* ]]; do shift; done
for node in 0 1; do SLURM_NODEID=$node "$@" & tasks+=($!); done
for task in ${tasks[@]}; do wait $task || exit 1; done"""
    tool(tmp_path / "bin" / "srun", body)
    (tmp_path / "job").write_text(slurm_text(job))
    subprocess.run(["bash", str(tmp_path / "job")], env=env, check=True, timeout=120, capture_output=True)
    assert ran(tmp_path) == ALL


STOPPING = """
import os, signal, sys, time
from pathlib import Path

def stop(*_):
    Path(sys.argv[1], os.environ["RANK"]).write_text("saved")
    sys.exit(0)

signal.signal(signal.SIGTERM, stop)
Path(sys.argv[1] + "-began", os.environ["RANK"]).touch()
time.sleep(300)
"""


# in place of torchrun: its children are the ranks, for which it waits
CHILDREN = """for word in "$@"; do [[ $word == *.py ]] && break; shift; done
for local in 0 1; do RANK=$((2 * ${SLURM_NODEID:-0} + local)) PYTHON "$@" & ranks+=($!); done
for rank in ${ranks[@]}; do wait $rank || exit 1; done"""  # `wait -n` may miss one of two that end together


@pytest.fixture(params=[pytest.param(True, id="torchrun", marks=pytest.mark.slow), pytest.param(False, id="children")])
def stopping(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """The environment of a job whose ranks save when they are asked to stop."""
    (tmp_path / "worker.py").write_text(STOPPING)
    (tmp_path / "ran-began").mkdir()

    def made(**more: str) -> dict[str, str]:
        found = environment(tmp_path, sys.executable, **more)
        if not request.param:
            tool(tmp_path / "bin" / "torchrun", CHILDREN.replace("PYTHON", shlex.quote(sys.executable)))
        return found

    return made


def stopped(command: list[str], env: dict[str, str], number: signal.Signals, tmp_path: Path, ranks: int) -> int:
    """The exit status of a job that is sent a signal once its ranks run."""
    process = subprocess.Popen(command, env=env, start_new_session=True)
    try:
        end = time.monotonic() + 100
        while len([*(tmp_path / "ran-began").iterdir()]) < ranks:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(number)
        return process.wait(100)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_a_requeued_job_saves_before_its_time_is_over(
    job: Job, tmp_path: Path, stopping: Callable[..., dict[str, str]]
) -> None:
    """Slurm signals the script; its tasks' ranks save, and the job is queued again."""
    text = slurm_text(replace(job, requeue=True))
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)
    assert "#SBATCH --signal=B:USR1@120" in text and "#SBATCH --requeue" in text
    env = stopping(SLURM_JOB_NODELIST="n[1-2]", SLURM_SUBMIT_DIR=str(tmp_path), SLURM_JOB_ID="77")
    tools = tmp_path / "bin"
    tool(tools / "scontrol", f"[ $1 = requeue ] && echo $2 > {tmp_path}/requeued; echo localhost; echo other")
    tool(tools / "scancel", f"kill -USR1 $(cat {tmp_path}/tasks)")
    body = f"""while [[ $1 == --* ]]; do shift; done
for node in 0 1; do SLURM_NODEID=$node "$@" & tasks+=($!); done
echo ${{tasks[@]}} > {tmp_path}/tasks
for task in ${{tasks[@]}}; do wait $task || exit 1; done"""
    tool(tools / "srun", body)
    (tmp_path / "job").write_text(text)
    assert stopped(["bash", str(tmp_path / "job")], env, signal.SIGUSR1, tmp_path, 4) == 0
    assert ran(tmp_path) == dict.fromkeys(ALL, "saved")
    assert (tmp_path / "requeued").read_text() == "77\n"


def test_a_pod_that_was_stopped_is_started_again(
    job: Job, tmp_path: Path, stopping: Callable[..., dict[str, str]]
) -> None:
    text = kubernetes_text(replace(job, nodes=1, requeue=True))
    assert "restartPolicy: ExitCode" in text and "terminationGracePeriodSeconds: 120" in text
    words = [json.loads(word) for word in re.findall(r'^ +- ("(?:-c|stop).*")$', text, re.M)]
    env = stopping(PET_NPROC_PER_NODE="2", PET_STANDALONE="1")
    command = ["bash", *(word.replace("$$", "$") for word in words)]
    assert stopped(command, env, signal.SIGTERM, tmp_path, 2) == 143
    assert ran(tmp_path) == {"0": "saved", "1": "saved"}


# -- Kubernetes --------------------------------------------------------------------------------------------------------

# The part of Kubeflow's CustomResourceDefinition of PyTorchJob (v1) that a manifest of ours touches: required keys,
# known keys and their types. Source: manifests/base/crds/kubeflow.org_pytorchjobs.yaml of kubeflow/training-operator.
POD = {
    "terminationGracePeriodSeconds": int,
    "*containers": [
        {
            "*name": str,
            "image": str,
            "workingDir": str,
            "command": [str],
            "args": [str],
            "env": [{"*name": str, "value": str}],
            "resources": {"limits": {"nvidia.com/gpu": int}},
            "volumeMounts": [{"*name": str, "*mountPath": str}],
        }
    ],
    "volumes": [{"*name": str, "emptyDir": {"medium": str}, "persistentVolumeClaim": {"*claimName": str}}],
}
REPLICA = {"replicas": int, "restartPolicy": str, "template": {"metadata": dict, "spec": POD}}
SCHEMA = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "nprocPerNode": str,
        "runPolicy": {"cleanPodPolicy": str, "backoffLimit": int},
        "*pytorchReplicaSpecs": {"Master": REPLICA, "Worker": REPLICA},
    },
}


def misfits(data: Any, schema: Any, where: str = "") -> list[str]:
    """What is not as the schema says; keys with a star are required."""
    if isinstance(schema, type):
        return [] if type(data) is schema else [f"{where}: {data!r} is no {schema.__name__}"]
    if isinstance(schema, list):
        found = data if isinstance(data, list) else []
        wrong = [] if isinstance(data, list) else [f"{where} is no list"]
        return wrong + [m for n, item in enumerate(found) for m in misfits(item, schema[0], f"{where}[{n}]")]
    known = {key.lstrip("*"): value for key, value in schema.items()}
    wrong = [f"{where} has no {key[1:]}" for key in schema if key.startswith("*") and key[1:] not in data]
    wrong += [f"{where} has {key}" for key in data if key not in known]
    return wrong + [m for key in data if key in known for m in misfits(data[key], known[key], f"{where}.{key}")]


def manifest(job: Job) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(kubernetes_text(job))


def test_the_manifest_is_a_pytorch_job(job: Job) -> None:
    found = manifest(job)
    assert misfits(found, SCHEMA) == []
    assert found["apiVersion"] == "kubeflow.org/v1" and found["kind"] == "PyTorchJob"
    replicas = found["spec"]["pytorchReplicaSpecs"]
    assert {name: r["replicas"] for name, r in replicas.items()} == {"Master": 1, "Worker": 1}
    (container,) = replicas["Master"]["template"]["spec"]["containers"]
    assert container["name"] == "pytorch"
    assert in_pod(container["command"]) == ["torchrun", "--max-restarts=3", *job.program]
    with_variable = manifest(replace(job, program=("main.py", "$(HOME) $$")))["spec"]["pytorchReplicaSpecs"]["Master"]
    (container,) = with_variable["template"]["spec"]["containers"]
    assert in_pod(container["command"])[2:] == ["main.py", "$(HOME) $$"]
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]


def in_pod(command: Iterable[str]) -> list[str]:
    """A command as Kubernetes starts it: `$$` is one dollar, and `$(NAME)` the value of a variable of the pod."""
    return [re.sub(r"\$\$|\$\(\w+\)", lambda found: "$" if found[0] == "$$" else "a value", w) for w in command]


def test_the_schema_refuses() -> None:
    assert misfits({"spec": {"pytorchReplicaSpec": {}}}, SCHEMA) == [
        ".spec has no pytorchReplicaSpecs",
        ".spec has pytorchReplicaSpec",
    ]


def test_gpus_and_a_volume() -> None:
    found = manifest(Job("p", ("p/main.py",), 1, 8, claim="data", image="me/torch:1"))
    assert misfits(found, SCHEMA) == [] and list(found["spec"]["pytorchReplicaSpecs"]) == ["Master"]
    pod = found["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert {"name": "programs", "persistentVolumeClaim": {"claimName": "data"}} in pod["volumes"]


def test_torchrun_reads_what_the_operator_sets(job: Job, tmp_path: Path, python: str) -> None:
    """Each pod runs the same command; two processes stand for the pods."""
    (words,) = {
        tuple(r["template"]["spec"]["containers"][0]["command"])
        for r in manifest(job)["spec"]["pytorchReplicaSpecs"].values()
    }
    command = in_pod(words)
    operator = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "localhost",
        "PET_MASTER_PORT": "29633",
    }
    pods = [
        subprocess.Popen(command, env=environment(tmp_path, python, **operator, PET_NODE_RANK=str(rank)))
        for rank in range(2)
    ]
    assert [pod.wait(120) for pod in pods] == [0, 0]
    assert ran(tmp_path) == ALL


NESTED = {
    "a": [1, [2, "x"], {"b": [], "c": {}}],
    "yes": "no",
    "n": "0x1",
    "t": "a: b\n#",
    "e": "",
    "k": {"i": [True, None]},
}


def test_yaml_is_read_as_it_was_meant() -> None:
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(yaml_text(NESTED)) == NESTED


def test_names_that_kubernetes_takes() -> None:
    for name in ("my plan", "__", "9", "x" * 90, "Ä-b_"):
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", resource_name(name))


# -- Ray ---------------------------------------------------------------------------------------------------------------


def test_ray_starts_all_processes(job: Job, tmp_path: Path, python: str) -> None:
    """With a stand-in for Ray, whose tasks are threads of one machine."""
    text = ray_text(job)
    ast.parse(text)
    (tmp_path / "job.py").write_text(f"import sys\nsys.executable = {python!r}\n{text}")
    env = environment(tmp_path, python, PYTHONPATH=str(HERE / "fake_ray"))
    subprocess.run([sys.executable, str(tmp_path / "job.py")], env=env, check=True, timeout=120, capture_output=True)
    assert ran(tmp_path) == ALL


def test_ray_asks_for_gpus() -> None:
    assert "NEEDS = {'CPU': 1, 'GPU': 8}" in ray_text(Job("p", ("main.py",), 2, 8))


# -- how many ----------------------------------------------------------------------------------------------------------


def test_nodes_follow_from_the_cluster() -> None:
    assert fit(32, None, None, load_cluster("v100x32")) == (2, 16)
    assert fit(8, None, None, load_cluster("v100x32")) == (1, 8)
    assert fit(32, 4, None, load_cluster("v100x32")) == (4, 8)
    assert fit(3, None, None, load_cluster("laptop")) == (1, 3)


@pytest.mark.parametrize(
    ("asked", "code", "change"),
    [
        ((12, None, None, None), "E0517", "--nodes 2 --gpus-per-node 6"),
        ((16, 3, None, None), "E0517", "--nodes 2 --gpus-per-node 8"),
        ((32, None, 32, "v100x32"), "E0517", "--nodes 2 --gpus-per-node 16"),
        ((32, 1, None, "v100x32"), "E0517", "--nodes 2 --gpus-per-node 16"),
        ((64, None, None, "v100x32"), "E0610", ""),
    ],
)
def test_what_does_not_fit(asked: tuple[Any, ...], code: str, change: str) -> None:
    processes, nodes, per_node, cluster = asked
    with pytest.raises(PlanError) as caught:
        fit(processes, nodes, per_node, load_cluster(cluster) if cluster else None)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == code and change in diagnostic.text(diagnostic.help)
