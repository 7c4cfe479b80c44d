"""Models captured once, plans compiled, programs trained and compared with the single device."""

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from ssdsl.cluster.cluster import Cluster
from ssdsl.codegen.write import write_program
from ssdsl.compile import compile_plan
from ssdsl.ir.program import Kernels
from ssdsl.ir.program import Program as IrProgram
from ssdsl.lang.parse import parse
from ssdsl.lower.lower import lower
from ssdsl.model.alter.run_graph import trained_model
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.plan.interpret import interpret_all
from ssdsl.run.errors import RunDiffers
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.run.results import RunResult, read_result
from ssdsl.run.verify.verify import difference, verify, verify_dumps
from ssdsl.runtime.options import Training
from ssdsl.text.render import render
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.captured import captured as captured
from tests.preloaded import Preloaded

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TRAINING = Training(steps=2, optimizer="sgd", lr=0.1)
# these two with as many layers and other operators as on the command line, which take half of the time
NARROW = {"gpt": "gpt:tiny,hidden=32,seq=16,vocab=64", "swin": "swin:tiny,hidden=16"}


def plan_path(name: str) -> Path:
    """A plan of this folder, or of the examples."""
    own = HERE / "plans" / f"{name}.ssp"
    return own if own.exists() else ROOT / "examples" / f"{name}.ssp"


def program_of_text(text: str, graph: Graph) -> IrProgram:
    """The program of a plan's text, which is not proved."""
    return lower(interpret_all(parse(Source("plan.ssp", text)), graph, {}, HERE)[0])


@dataclass(frozen=True)
class Program:
    """A plan compiled for a model."""

    model: Model
    compiled: Compiled
    own: Path
    starter: "subprocess.Popen[str]"

    @property
    def one_device(self) -> Model:
        """The model that a single device trains."""
        return trained_model(self.model, self.compiled.plan.altered)

    @cached_property
    def folder(self) -> Path:
        """The program's files, for those who run or change them; ranks that take turns need none."""
        write_program(self.compiled.program, self.model, self.own / "program", self.compiled.source)
        return self.own / "program"

    @property
    def out(self) -> Path:
        return self.own / "results"

    @property
    def devices(self) -> int:
        return self.compiled.plan.devices

    def train(self, training: Training = TRAINING) -> RunResult:
        """Train on as many processes as the plan has devices."""
        self.out.mkdir()
        main = [str(self.folder / "main.py"), *training.arguments(), "--out", str(self.out), "--dump"]
        assert self.starter.stdin and self.starter.stdout
        print(json.dumps({"arguments": main, "processes": self.devices}), file=self.starter.stdin, flush=True)
        status = self.starter.stdout.readline().strip()
        errors = [path.read_text() for path in sorted(self.out.glob("rank*.err"))]
        assert status == "0", "\n".join([f"a rank ended with status {status}", *errors])
        return read_result(self.out, training.steps, range(self.devices))

    def verify(self, training: Training = TRAINING) -> None:
        """Train in process, and compare every loss, gradient, weight and buffer with the single device's."""
        finished = run_in_process(program_of(self.compiled.program, self.model), training)
        found = difference(verify_dumps(self.one_device, training, finished.losses, finished.dumps))
        assert found is None, render(found)

    def verify_processes(self, training: Training = TRAINING) -> None:
        """The same of processes that gloo connects."""
        found = self.difference(training)
        assert found is None, render(found)

    def difference(self, training: Training = TRAINING) -> RunDiffers | None:
        """Train; the first tensor that differs."""
        return difference(verify(self.one_device, training, self.train(training)))


@pytest.fixture(scope="session")
def starter(preloaded: Preloaded) -> Iterator["subprocess.Popen[str]"]:
    """The process that starts ranks."""
    command = [preloaded.executable, str(HERE / "ranks.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin
        process.stdin.close()


@pytest.fixture
def program(starter: "subprocess.Popen[str]", tmp_path: Path) -> Callable[..., Program]:
    """Compile a plan, by name or by path, for a model; params by keyword."""

    def make(
        plan: str | Path,
        spec: str = "gpt",
        cluster: Cluster | None = None,
        kernels: Kernels = Kernels.EAGER,
        **params: int,
    ) -> Program:
        model, graph = captured(NARROW.get(spec, spec))
        path = plan if isinstance(plan, Path) else plan_path(plan)
        compiled = compile_plan(path, graph, params, cluster, kernels=kernels)
        return Program(model, compiled, tmp_path, starter)

    return make
