"""What the server tells an editor by itself: the mistakes of a plan while it changes, the capture of its model."""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path

from lsprotocol import types
from pygls.lsp.server import LanguageServer

import ssdsl
from ssdsl.lang.consent import consent, is_consented, model_file
from ssdsl.lsp.beside import Answer, Helper, NotOpened
from ssdsl.lsp.places import range_of_json
from ssdsl.lsp.plans import OpenPlan
from ssdsl.plan.model_index import ModelIndex, index_model
from ssdsl.text.render import as_json

QUIET_S, STILL_S = 0.05, 0.25  # behind the last key: until names are read, and until the plan is compiled
NEW_S = 1.0  # and until another model is captured, whose name may not be typed yet
OF_NAMES = "E02"  # codes before it are of syntax
RUN, LEAVE = "Run it", "Not now"


class PlanServer(LanguageServer):
    """The open plans, the models that they are for, and what is under way for them."""

    def __init__(self) -> None:
        super().__init__("ssdsl", ssdsl.__version__)
        self.plans: dict[str, OpenPlan] = {}
        self.helpers: dict[tuple[str, Path], asyncio.Task[Helper]] = {}
        self.models: dict[tuple[str, Path], ModelIndex] = {}
        self.work: dict[str, asyncio.Task[None]] = {}
        self.tokens = itertools.count()
        self.ended = False

    # -- what it tells by itself ---------------------------------------------------------------------------------------

    def changed(self, uri: str) -> None:
        """Tells mistakes of syntax now, those of names when the keys rest, the rest when they rest longer."""
        if (old := self.work.pop(uri, None)) is not None:
            old.cancel()
        plan = self.plans[uri]
        others = [problem for problem in plan.problems if problem["code"] >= OF_NAMES]
        if plan.syntax or len(others) < len(plan.problems):
            self.tell(uri, [*plan.syntax, *others])
        self.work[uri] = asyncio.create_task(self._look(uri, plan))

    async def _look(self, uri: str, plan: OpenPlan) -> None:
        await asyncio.sleep(QUIET_S)
        helper = await self._opened(uri, plan)
        if helper is None or plan.model is None:
            return
        source = plan.source
        reading, found = await asyncio.to_thread(plan.read)
        plan.reading, plan.costs = reading, {}
        self.tell(uri, [*map(as_json, found)])
        self._refresh()
        if any(one.severity == "error" for one in found):
            await helper.stop()
            return
        await asyncio.sleep(STILL_S)
        about = {"name": source.name, "text": source.text, "folder": str(plan.path.parent)}
        answer = await helper.compile(**about, params=plan.params, cluster=plan.cluster)
        if answer is None:
            return
        plan.costs = {int(line): said for line, said in answer.get("costs", {}).items()}
        self.tell(uri, answer["diagnostics"])

    async def _opened(self, uri: str, plan: OpenPlan) -> Helper | None:
        """The helper of the plan's model, which is captured at the first use; None where there is none."""
        if (spec := plan.header.given("--model")) is None:
            plan.model = None
            self.tell(uri, [*plan.syntax, _hint("name the model on top, and more is told: `# for: --model gpt:tiny`")])
            return None
        folder = plan.path.parent
        if (named := model_file(spec, folder)) is not None:
            path, spec = named
            if path.exists() and not await self._may_run(plan, path):
                self.tell(uri, [*plan.syntax, _hint(f"the file of the model, {path}, was not run")])
                return None
        key = spec, folder
        if key not in self.helpers:
            await asyncio.sleep(NEW_S)
            await self._leave()
            self.helpers[key] = asyncio.create_task(self._start(spec, folder))
        try:
            helper = await asyncio.shield(self.helpers[key])
        except NotOpened as error:
            self.helpers.pop(key, None)
            why = f"{spec} could not be captured: {error}"
            self.tell(uri, [*plan.syntax, *(error.diagnostics or [_hint(why, "error")])])
            return None
        if key not in self.models:
            self.models[key] = await asyncio.to_thread(index_model, helper.graph)
        plan.model = self.models[key]
        return helper

    async def _leave(self) -> None:
        """Ends the helpers of models that no open plan is for any more."""
        wanted = {(plan.header.given("--model"), plan.path.parent) for plan in self.plans.values()}
        wanted |= {(named[1], folder) for spec, folder in wanted if spec and (named := model_file(spec, folder))}
        for key in [*self.helpers]:
            if key not in wanted:
                self.models.pop(key, None)
                await _ended(self.helpers.pop(key))

    async def _start(self, spec: str, folder: Path) -> Helper:
        """Captures a model, and says so while it takes its time."""
        capabilities = self.client_capabilities.window
        token = f"ssdsl-{next(self.tokens)}" if capabilities is not None and capabilities.work_done_progress else None
        if token is not None:
            await self.work_done_progress.create_async(token)
            begin = types.WorkDoneProgressBegin(title=f"capturing {spec}", cancellable=False)
            self.work_done_progress.begin(token, begin)
        try:
            return await Helper.start(spec, folder)
        finally:
            if token is not None and not self.ended:
                self.work_done_progress.end(token, types.WorkDoneProgressEnd())

    async def _may_run(self, plan: OpenPlan, path: Path) -> bool:
        """Whether the user wants the file of a model to run: asked once for each file as it is."""
        if is_consented(path):
            return True
        question = f"{plan.path.name} asks for the model of {path}, whose file would run. Run it, now and later?"
        actions = [types.MessageActionItem(RUN), types.MessageActionItem(LEAVE)]
        asked = types.ShowMessageRequestParams(types.MessageType.Warning, question, actions)
        answer = await self.window_show_message_request_async(asked)
        if answer is None or answer.title != RUN:
            return False
        consent(path)
        return True

    def tell(self, uri: str, problems: Sequence[Answer]) -> None:
        """Publishes what is wrong with a plan."""
        plan = self.plans.get(uri)
        if plan is None or self.ended:
            return
        plan.problems = [*problems]
        found = [diagnostic_of(plan, problem) for problem in problems]
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, found))

    def _refresh(self) -> None:
        """Asks for hints and colours again, which follow from what was just read."""
        workspace = self.client_capabilities.workspace
        if workspace is not None and workspace.inlay_hint is not None and workspace.inlay_hint.refresh_support:
            self.workspace_inlay_hint_refresh(None)

    async def close(self) -> None:
        """Ends all work and all processes."""
        self.ended = True
        for task in self.work.values():
            task.cancel()
        await asyncio.gather(*self.work.values(), return_exceptions=True)
        await asyncio.gather(*map(_ended, self.helpers.values()))
        self.work, self.helpers = {}, {}


async def _ended(helper: "asyncio.Task[Helper]") -> None:
    """Ends a helper, or its start."""
    helper.cancel()
    (started,) = await asyncio.gather(helper, return_exceptions=True)
    if isinstance(started, Helper):
        await started.end()


def _hint(text: str, severity: str = "hint") -> Answer:
    return {"code": "", "severity": severity, "message": text, "line": None, "notes": [], "help": [], "others": []}


def diagnostic_of(plan: OpenPlan, problem: Answer) -> types.Diagnostic:
    """A problem as editors show it: title, place, reasons and help."""
    severities = {"error": types.DiagnosticSeverity.Error, "warning": types.DiagnosticSeverity.Warning}
    label = problem.get("label")
    said = [
        problem["message"],
        *([label] if label else []),
        *problem["notes"],
        *(f"help: {x}" for x in problem["help"]),
    ]
    return types.Diagnostic(
        range_of_json(plan.source, problem),
        "\n".join(said),
        severity=severities.get(problem["severity"], types.DiagnosticSeverity.Hint),
        code=problem["code"] or None,
        source="ssdsl",
        related_information=[
            types.DiagnosticRelatedInformation(
                types.Location(plan.path.as_uri(), range_of_json(plan.source, place)), place["label"] or ""
            )
            for place in problem["others"]
            if place["file"] == plan.source.name
        ]
        or None,
    )
