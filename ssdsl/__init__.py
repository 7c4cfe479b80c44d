"""A language for parallel training plans, and its compiler to torch.distributed programs.

`engine` is for training scripts, `compile_plan` reads a plan, which can be shown and simulated, `search` finds one,
`model_of` makes a model of a module and a batch. `Op`,
`PartKernel`, `Collective` (`ssdsl.Op("mylib::scan", ...)`: rows of the table of operators) and `micro_batch_statistics`
are for files of models; a script gives its rows to `add_rows`. `import ssdsl` does not load torch: these names load it
at their first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssdsl.model.load.from_module import model_of as model_of
    from ssdsl.model.ops.op import Collective as Collective
    from ssdsl.model.ops.op import Op as Op
    from ssdsl.model.ops.op import PartKernel as PartKernel
    from ssdsl.model.ops.registry import add_rows as add_rows
    from ssdsl.model.rewrite.grouped_norm import micro_batch_statistics as micro_batch_statistics
    from ssdsl.plan_report import CompiledPlan as CompiledPlan
    from ssdsl.plan_report import SimulatedPlan as SimulatedPlan
    from ssdsl.plan_report import compile_plan as compile_plan
    from ssdsl.run.engine import engine as engine
    from ssdsl.runtime.errors import EngineError as EngineError
    from ssdsl.search_report import SearchReport as SearchReport
    from ssdsl.search_report import search as search

__version__ = "0.1.0"
_PLACES = dict.fromkeys(("Op", "PartKernel", "Collective"), "ssdsl.model.ops.op")
_PLACES["model_of"] = "ssdsl.model.load.from_module"
_PLACES["add_rows"] = "ssdsl.model.ops.registry"
_PLACES["micro_batch_statistics"] = "ssdsl.model.rewrite.grouped_norm"
_PLACES |= dict.fromkeys(("search", "SearchReport"), "ssdsl.search_report")
_PLACES |= dict.fromkeys(("compile_plan", "CompiledPlan", "SimulatedPlan"), "ssdsl.plan_report")
_PLACES["engine"] = "ssdsl.run.engine"
_PLACES["EngineError"] = "ssdsl.runtime.errors"


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module `ssdsl` has no attribute `{name}`")


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext ssdsl` in a notebook: cells with `%%ssp --model gpt` are plans."""
    importlib.import_module("ssdsl.notebook").register(shell)


def __dir__() -> list[str]:
    return sorted([*_PLACES, "__version__"])
