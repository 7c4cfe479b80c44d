"""The files of the page on schedulers: they parse, their programs' options exist, and they start the processes that
they should; with stand-ins for Slurm's commands, Kubernetes' operator and Ray."""

import ast
import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssdsl.runtime import main
from tests.docs.console import ROOT, File, session_of

PAGE = (ROOT / "docs" / "schedulers.md").read_text("utf-8")
FILES = {step.name: step.text for step in session_of(PAGE) if isinstance(step, File)}
PROGRAM = ("build/main.py", "--device", "cuda", "--save", "runs/a", "--save-every", "100", "--resume", "runs/a")
HERE = Path(__file__).parent

# a process of a job: it leaves its rank, so that the test sees who has run
WORKER = "import os, sys; from pathlib import Path; Path(sys.argv[1], os.environ['RANK']).write_text(sys.argv[2])"
SAID = "it's $HOME; two words"
ALL = {str(rank): SAID for rank in range(4)}


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """In place of the page's program: a script, with an argument that no shell may expand."""
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "ran").mkdir()
    (tmp_path / "stoppable.sh").write_text(FILES["stoppable.sh"])
    return [str(tmp_path / "worker.py"), str(tmp_path / "ran"), SAID]


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return int(listening.getsockname()[1])


def ran(tmp_path: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (tmp_path / "ran").iterdir()}


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


def test_the_program_has_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [*PROGRAM])
    options = main._options()
    assert (options.device, options.save_every) == ("cuda", 100)
    assert options.save == options.resume == Path("runs/a")


# -- Slurm -------------------------------------------------------------------------------------------------------------

SRUN = """while [[ $1 == --* ]]; do shift; done
for node in 0 1; do SLURM_NODEID=$node "$@" & tasks+=($!); done
echo ${{tasks[@]}} > {tmp_path}/tasks
for task in ${{tasks[@]}}; do wait $task || exit 1; done"""


@pytest.fixture
def slurm(program: list[str], tmp_path: Path) -> Path:
    """The page's batch file with this program; tasks of the two nodes run here, and are told their number."""
    (tmp_path / "bin").mkdir()
    tool(
        tmp_path / "bin" / "scontrol", f"[ $1 = requeue ] && echo $2 > {tmp_path}/requeued; echo localhost; echo other"
    )
    tool(tmp_path / "bin" / "scancel", f"kill -USR1 $(cat {tmp_path}/tasks)")
    tool(tmp_path / "bin" / "srun", SRUN.format(tmp_path=tmp_path))
    text = FILES["job.sh"].replace(f"({' '.join(PROGRAM)})", f"({shlex.join(program)})").replace("29500", "29631")
    assert shlex.join(program) in text and "29631" in text
    (tmp_path / "job.sh").write_text(text)
    return tmp_path / "job.sh"


def of_slurm(tmp_path: Path) -> dict[str, str]:
    return {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "77"}


def test_a_batch_file_begins_with_its_options() -> None:
    for name in ("job.sh", "stoppable.sh"):
        subprocess.run(["bash", "-n"], input=FILES[name].encode(), check=True)
    lines = FILES["job.sh"].splitlines()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", FILES["job.sh"], re.M))
    assert lines[0] == "#!/bin/bash" and len(options) == sum(line.startswith("#SBATCH") for line in lines)
    assert lines[1 : len(options) + 1] == [line for line in lines if line.startswith("#SBATCH")]  # before any command
    assert options["nodes"] == "2" and options["ntasks-per-node"] == "1" and options["gpus-per-node"] == "2"


def test_slurm_starts_all_processes(slurm: Path, tmp_path: Path, python: str) -> None:
    env = environment(tmp_path, python, **of_slurm(tmp_path))
    subprocess.run(["bash", str(slurm)], env=env, check=True, timeout=120, capture_output=True)
    assert ran(tmp_path) == ALL and not (tmp_path / "requeued").exists()


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
def stopping(request: pytest.FixtureRequest, program: list[str], tmp_path: Path) -> Callable[..., dict[str, str]]:
    """The environment of a job whose ranks save when they are asked to stop."""
    (tmp_path / "worker.py").write_text(STOPPING)
    (tmp_path / "ran-began").mkdir()

    def surroundings(**more: str) -> dict[str, str]:
        env = environment(tmp_path, sys.executable, **more)
        if not request.param:
            tool(tmp_path / "bin" / "torchrun", CHILDREN.replace("PYTHON", shlex.quote(sys.executable)))
        return env

    return surroundings


def stopped(command: list[str], env: dict[str, str], number: signal.Signals, tmp_path: Path, ranks: int) -> int:
    """The exit status of a job that is sent a signal once its ranks run."""
    process = subprocess.Popen(command, env=env, cwd=tmp_path, start_new_session=True)
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


def test_a_job_of_slurm_saves_before_its_time_is_over(
    slurm: Path, tmp_path: Path, stopping: Callable[..., dict[str, str]]
) -> None:
    """Slurm signals the script; its tasks' ranks save, and the job is queued again."""
    assert stopped(["bash", str(slurm)], stopping(**of_slurm(tmp_path)), signal.SIGUSR1, tmp_path, 4) == 0
    assert ran(tmp_path) == dict.fromkeys(ALL, "saved")
    assert (tmp_path / "requeued").read_text() == "77\n"


# -- Kubernetes --------------------------------------------------------------------------------------------------------

# The part of Kubeflow's CustomResourceDefinition of PyTorchJob (v1) that the manifest touches: required keys, known
# keys and their types. Source: manifests/base/crds/kubeflow.org_pytorchjobs.yaml of kubeflow/training-operator.
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
        if not isinstance(data, list):
            return [f"{where} is no list"]
        return [m for n, item in enumerate(data) for m in misfits(item, schema[0], f"{where}[{n}]")]
    known = {key.lstrip("*"): value for key, value in schema.items()}
    wrong = [f"{where} has no {key[1:]}" for key in schema if key.startswith("*") and key[1:] not in data]
    wrong += [f"{where} has {key}" for key in data if key not in known]
    return wrong + [m for key in data if key in known for m in misfits(data[key], known[key], f"{where}.{key}")]


def test_the_schema_refuses() -> None:
    assert misfits({"spec": {"pytorchReplicaSpec": {}}}, SCHEMA) == [
        ".spec has no pytorchReplicaSpecs",
        ".spec has pytorchReplicaSpec",
    ]


@pytest.fixture
def manifest() -> Any:
    return pytest.importorskip("yaml").safe_load(FILES["job.yaml"])


def container_of(manifest: Any) -> Any:
    """The one container that each pod has."""
    replicas = manifest["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    (container,) = replicas["Master"]["template"]["spec"]["containers"]
    return container


def in_pod(manifest: Any, program: list[str]) -> list[str]:
    """The command of a pod, with this program; Kubernetes would expand `$`."""
    words = container_of(manifest)["command"]
    assert words[-len(PROGRAM) :] == [*PROGRAM] and "$" not in "".join(words)
    return [*words[: -len(PROGRAM)], *program]


def test_the_manifest_is_a_pytorch_job(manifest: Any) -> None:
    assert misfits(manifest, SCHEMA) == []
    assert manifest["apiVersion"] == "kubeflow.org/v1" and manifest["kind"] == "PyTorchJob"
    replicas = manifest["spec"]["pytorchReplicaSpecs"]
    assert {name: r["replicas"] for name, r in replicas.items()} == {"Master": 1, "Worker": 1}
    assert container_of(manifest)["name"] == "pytorch"


def test_torchrun_reads_what_the_operator_sets(manifest: Any, program: list[str], tmp_path: Path, python: str) -> None:
    """Each pod runs the same command; two processes stand for the pods."""
    operator = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": manifest["spec"]["nprocPerNode"],
        "PET_MASTER_ADDR": "localhost",
        "PET_MASTER_PORT": str(free_port()),
    }
    command = in_pod(manifest, program)
    pods = [
        subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path, python, **operator, PET_NODE_RANK=str(rank)))
        for rank in range(2)
    ]
    assert [pod.wait(120) for pod in pods] == [0, 0]
    assert ran(tmp_path) == ALL


def test_a_pod_that_was_stopped_is_started_again(
    manifest: Any, program: list[str], tmp_path: Path, stopping: Callable[..., dict[str, str]]
) -> None:
    """The operator starts a pod again that has ended with 143."""
    container = {variable["name"]: variable["value"] for variable in container_of(manifest)["env"]}
    env = stopping(PET_NPROC_PER_NODE="2", PET_STANDALONE="1", **container)
    assert stopped(in_pod(manifest, program), env, signal.SIGTERM, tmp_path, 2) == 143
    assert ran(tmp_path) == {"0": "saved", "1": "saved"}


# -- Ray ---------------------------------------------------------------------------------------------------------------


def test_ray_starts_all_processes(program: list[str], tmp_path: Path, python: str) -> None:
    """With a stand-in for Ray, whose tasks are threads of one machine."""
    tree = ast.parse(FILES["job.py"])
    (line,) = (node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PROGRAM")
    assert ast.literal_eval(line.value) == [*PROGRAM]
    line.value = ast.Constant(program)
    (tmp_path / "job.py").write_text(f"import sys\nsys.executable = {python!r}\n{ast.unparse(tree)}")
    env = environment(tmp_path, python, PYTHONPATH=str(HERE / "fake_ray"))
    subprocess.run([sys.executable, str(tmp_path / "job.py")], env=env, check=True, timeout=120, capture_output=True)
    assert ran(tmp_path) == ALL
