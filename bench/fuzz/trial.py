"""One plan on one model: compiled, trained in this process, compared with the single device."""

import re
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from zlib import crc32

from bench.fuzz.models import Recipe
from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.load import load_cluster
from ssdsl.ir.program import Kernels
from ssdsl.lang.parse import parse
from ssdsl.lower.lower import lower
from ssdsl.model.checks.check_capture import check_capture
from ssdsl.model.graph import Graph
from ssdsl.model.load import load
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.plan.interpret import interpret_all
from ssdsl.prove.prove import prove
from ssdsl.record import replace
from ssdsl.run.in_process.run_in_process import RanksFailed
from ssdsl.run.verify.compare import Comparison
from ssdsl.run.verify.in_threads import VerifierInThreads
from ssdsl.run.verify.verify import difference
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source

SLOW = load_cluster(str(Path(__file__).parent / "slow.toml"))  # for every other plan
FOLDER = Path(tempfile.gettempdir())
BUGS = ("E0451", "E0511")
UNLIKE = ("E0510", "E0511", "E0524")  # what ranks hold, or make, is not what one device has
ROUNDING = 1e-9  # in double precision no mistake is as small as this, beside a tensor's largest element or beside 1


@dataclass(frozen=True, slots=True)
class Case:
    """What is tried: a model, a plan's statements, and how to train."""

    recipe: Recipe
    plan: tuple[str, ...]
    optimizer: str
    steps: int

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows of the report that it counts in."""
        return self.recipe.rows

    @property
    def plan_text(self) -> str:
        return "\n".join(self.plan) + "\n"


COLUMNS = ("equal", "refused", "wrong", "false alarm", *BUGS, "crash")


@dataclass(frozen=True, slots=True)
class Outcome:
    """`equal`, `refused`, or what went wrong; `sign` is what two failures of one cause have in common."""

    kind: str
    sign: str = ""
    text: str = ""

    @property
    def is_failure(self) -> bool:
        return self.column not in ("equal", "refused")

    @property
    def column(self) -> str:
        """Of the report. A refusal that calls itself a bug of ssdsl is counted by its code."""
        code = "E0451" if self.kind == "unproved" else self.sign.partition(",")[0]
        if code in BUGS:
            return code
        return self.kind if self.kind in COLUMNS else "crash"


def try_case(case: Case) -> Outcome:
    """What becomes of the plan."""
    try:
        model, graph = captured(case.recipe)
    except PlanError as error:
        return Outcome("refused", error.diagnostics[0].code, str(error))
    except Exception as error:
        return Outcome("capture", error_sign(error), trace(error))
    training = Training(case.steps, optimizer=case.optimizer, lr=0.02)
    cluster, kernels = ways_of(case.plan_text)
    return try_plan(model, graph, case.plan_text, training, cluster, kernels)


def ways_of(plan_text: str) -> tuple[Cluster | None, Kernels]:
    """The cluster and the kernels that a plan is tried with: every other plan one, every third the other."""
    number = crc32(plan_text.encode())
    return SLOW if number % 2 else None, Kernels.EAGER if number % 3 else Kernels.COMPILED


def try_plan(
    model: Model,
    graph: Graph,
    plan_text: str,
    training: Training,
    cluster: Cluster | None = None,
    kernels: Kernels = Kernels.EAGER,
) -> Outcome:
    """What becomes of a plan's text on a captured model, with the communication that is best on a cluster."""
    try:
        plan, _ = interpret_all(parse(Source("plan.ssp", plan_text)), graph, {}, FOLDER)
        lowered = lower(plan, cluster, kernels=kernels)
        failures = prove(lowered).failures
    except PlanError as error:
        return Outcome("refused", error.diagnostics[0].code, str(error))
    except Exception as error:
        return Outcome("compiler", error_sign(error), trace(error))
    verifier, altered = VerifierInThreads(model, graph, training, kernels), plan.altered
    ran = _run(lambda: verifier.compared(lowered, altered))
    if altered is not None and altered.compressed and ran.kind == "equal":
        ran = _run(lambda: verifier.lossless(Source("plan.ssp", plan_text), lowered, altered, {}, FOLDER))
    if failures:
        sign = f"{failures[0].rule}, {f'and {ran.kind}' if ran.is_failure else 'though right'}"
        return Outcome("unproved", sign, "\n".join([*(render(f) for f in failures[:3]), ran.text]))
    return replace(ran, sign=f"{ran.sign}, proved") if ran.is_failure else ran


def _run(compare: Callable[[], tuple[Comparison, ...]]) -> Outcome:
    try:
        compared = compare()
    except RanksFailed as failure:
        return _failed(failure)
    except PlanError as error:
        code = error.diagnostics[0].code
        return Outcome("wrong" if code in UNLIKE else "refused", code, str(error))
    except Exception as error:
        return Outcome("verify", error_sign(error), trace(error))
    found = difference(compared)
    if found is None:
        return Outcome("equal")
    text = f"{found.what} {found.name}: {found.got} instead of {found.expected}; {found.where}; {found.summary}"
    is_rounding = all(not c.missing and c.error <= ROUNDING * max(1.0, c.largest) for c in compared if c.differs)
    return Outcome("false alarm" if is_rounding else "wrong", found.what, text)


def _failed(failure: RanksFailed) -> Outcome:
    """What a run ended with."""
    last = str(failure).strip().splitlines()[-1]
    return Outcome(failure.kind, words(last) if failure.kind == "crash" else "", str(failure))


@lru_cache(maxsize=256)
def captured(recipe: Recipe) -> tuple[Model, Graph]:
    """The model with its graph, by way of the file that a reproduction has."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.py"
        path.write_text(recipe.text)
        model = load(f"{path}:net", generator=recipe.generator, meta=recipe.meta)
        graph = capture(model)
        check_capture(model, graph)
        return model, graph


def error_sign(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(frame.filename).name}:{frame.name}"


def words(message: str) -> str:
    """A message without its numbers and names."""
    return re.sub(r"\d+|\'[^\']*\'", "#", message)[:70]


def trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))
