"""The model that a plan changes, by `precision` and `compress`. The plan is read again for it, as its operators are
then others."""

import importlib.util

from ssdsl.model.alter.altered import altered
from ssdsl.model.alter.recast import CannotCompute
from ssdsl.model.graph import twins
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.facts import Facts
from ssdsl.plan.model_index import ModelIndex, index_model
from ssdsl.plan.statements.compress import compressed_by
from ssdsl.plan.statements.precision import no_kernel, types_of
from ssdsl.text.diagnostic import PlanError

MOST_KEPT = 8  # changed graphs, of the last plans for a model


def is_altered(facts: Facts) -> bool:
    """Whether statements change the model."""
    return bool(facts.precisions or facts.compressions)


def altered_by(model: ModelIndex, facts: Facts) -> ModelIndex:
    """The model with the changes that statements make. Raises PlanError where they cannot, or contradict each other."""
    types, compressed = types_of(model, facts), compressed_by(model, facts)
    key = tuple(sorted(types.items())), compressed
    if key not in model.altered_as:
        if importlib.util.find_spec("torch") is None:
            spans = [stated.span for stated in facts.precisions] + [stated.span for stated in facts.compressions]
            raise PlanError(AlteredWithoutTorch(spans[0]))
        of_twins = {twin: types[o.name] for twin, o in twins(model.graph.operators) if o.name in types}
        try:
            changes = altered(model.graph, of_twins, compressed)
        except CannotCompute as error:
            raise PlanError(no_kernel(error, facts)) from None
        if len(model.altered_as) == MOST_KEPT:
            model.altered_as.clear()
        model.altered_as[key] = index_model(changes.graph, altered=changes)
    return model.altered_as[key]


class AlteredWithoutTorch(Traced):
    """Where a plan gives operators other types, or compresses results, torch has to show what operators then keep for
    backward. A captured graph shows that of the model alone."""

    code = "E0239"
    title = "a plan cannot change the model where torch is not installed"
    help = "install torch, or leave this line out"
