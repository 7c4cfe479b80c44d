"""The structure of a legal program, a row for each form: what refers to something refers to what is there, once.

Types are checked elsewhere (`ssdsl/prove`): a program can pass here and compute something else than the model. The
rows of what a role does in a step are in `verify_roles.py`.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

from ssdsl.ir.comm import AllGather, AllToAll, Exchange, Move, Narrow, ReduceScatter, Signal, Step, Transfer, cuts_of
from ssdsl.ir.function import (
    Concat,
    Conversion,
    Extend,
    First,
    Function,
    Instr,
    Op,
    Prologue,
    Reshard,
    Slice,
    Write,
    reads_of,
    results_of,
)
from ssdsl.ir.layout import Cut, Shape, Submesh
from ssdsl.ir.param import SumTiedGrads, Zero
from ssdsl.ir.program import Program
from ssdsl.ir.rows import counts_of, slots_of
from ssdsl.ir.value import Name, Var
from ssdsl.ir.verify_roles import ROLE_ROWS
from ssdsl.model.graph import Stage, Value
from ssdsl.text.diagnostic import InternalError

SHOWN = 8
Row = Callable[[Program], Iterator[str]]


def verify(program: Program) -> None:
    """Raises InternalError with what is wrong, if anything is."""
    if found := violations(program):
        more = [f"... {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        raise InternalError("\n".join(["the compiler made a program that is not legal:", *found[:SHOWN], *more]))


def violations(program: Program) -> list[str]:
    """Everything that is wrong with a program's structure. Rows behind one that fails may count on it."""
    for row in ROWS:
        if found := [f"{row.__name__.strip('_')}: {text}" for text in row(program)]:
            return found
    return []


# -- numbers and operators ---------------------------------------------------------------------------------------------


def _numbers_are_positions(program: Program) -> Iterator[str]:
    for what, numbers in (
        ("function", [f.number for f in program.functions]),
        ("message", [m.number for m in program.messages]),
        ("flat parameter", [f.number for f in program.flats]),
    ):
        if numbers != list(range(len(numbers))):
            yield f"the {what}s are numbered {numbers}"


def _every_operator_is_in_one_function(program: Program) -> Iterator[str]:
    wanted = {o.name for o in program.graph.operators if o.stage is Stage.COMPUTE}
    count = Counter(op.operator for f in program.functions for op in f.operators())
    yield from (f"`{name}` is in {count[name]} functions" for name in sorted(wanted) if count[name] != 1)
    yield from (f"`{name}` does not compute anything of the model" for name in sorted(count.keys() - wanted))


def _operators_read_and_leave_what_the_graph_says(program: Program) -> Iterator[str]:
    operators = {o.name: o for o in program.graph.operators}
    for where, body, _ in _bodies(program):
        for op in (i for i in body if isinstance(i, Op)):
            operator = operators[op.operator]
            if [r.value for r in op.reads] != [o.value for o in operator.inputs]:
                yield f"`{op.operator}` of {where} reads {[str(r) for r in op.reads]}"
            if [v.name.value for v in op.results] != [o.value for o in operator.outputs]:
                yield f"`{op.operator}` of {where} leaves {[str(v.name) for v in op.results]}"
            if op.sides is not None and len(op.sides) != len(op.reads):
                yield f"`{op.operator}` of {where} has {len(op.sides)} sides for {len(op.reads)} operands"


# -- names and types ---------------------------------------------------------------------------------------------------


def _names_are_defined_once_and_before_use(program: Program) -> Iterator[str]:
    for where, body, given in _bodies(program):
        known = set[Name]()
        for var in given:
            if var.name in known:
                yield f"%{var.name} enters {where} twice"
            known.add(var.name)
        for instr in body:
            yield from (f"{where} reads %{r} before it is made" for r in reads_of(instr) if r not in known)
            for var in results_of(instr):
                if var.name in known:
                    yield f"{where} makes %{var.name} twice"
                known.add(var.name)


def _conversions_keep_their_value(program: Program) -> Iterator[str]:
    for where, body, _ in _bodies(program):
        for instr in body:
            if isinstance(instr, Conversion) and instr.source.value != instr.result.name.value:
                yield f"{where} makes %{instr.result.name} of %{instr.source}"


def _layouts_have_a_place_for_each_axis(program: Program) -> Iterator[str]:
    for where, variables, submesh, times in _typed(program):
        for var in variables:
            for type_ in (var.type, *([var.gradient] if var.gradient else [])):
                if len(type_.layout.places) != len(submesh.axes):
                    yield f"%{var.name} of {where} has {len(type_.layout.places)} places for {submesh}"
                if not {*(n for n, _ in type_.time), *type_.owed} <= times:
                    yield f"%{var.name} of {where} has a part in a time that the function has not"
            if len(var.shape) != len(program.graph.values[var.name.value].shape):
                yield f"%{var.name} of {where} has {len(var.shape)} axes"
    for param in program.params:
        if len(param.layout.places) != len(param.submesh.axes):
            yield f"`{param.weight}` has {len(param.layout.places)} places for {param.submesh}"


def _steps_are_along_axes_of_the_submesh(program: Program) -> Iterator[str]:
    homes = {(p.weight, p.submesh) for p in program.params if not p.trained}
    for where, body, submesh in _placed(program):
        for instr in body:
            axes = {a for a, _ in submesh.axes}
            match instr:
                case Reshard():
                    for step in (*instr.forward, *instr.backward):
                        yield from (f"{where}: {problem}" for problem in _step(step, axes, len(instr.result.shape)))
                case Op():
                    if not set(instr.kernel.axes) <= axes:
                        yield f"{where}: `{instr.operator}` communicates over {instr.kernel.axes}"
                case Write():
                    if (instr.buffer, submesh) not in homes:
                        yield f"{where} writes `{instr.buffer}`, which does not live on {submesh}"
                case First():
                    pass
                case Slice() | Extend():
                    if not instr.cut.dim < len(instr.result.shape):
                        yield f"{where}: %{instr.result.name} is cut along axis {instr.cut.dim}"


def _rows_at_experts_stay_as_they_are(program: Program) -> Iterator[str]:
    """How many rows an expert has is known when it runs: no step, slice or join may cut them by a number of before.
    Only one all_to_all in each direction may, which reads how many they are."""
    values, counts = program.graph.values, counts_of(program.graph)
    ragged = {v.name: slots for v in values.values() if (slots := slots_of(v)) is not None}
    for where, body, _ in _bodies(program):
        for part in (i for i in body if isinstance(i, Slice) and i.source.value in ragged):
            if _is_of_rows(values[part.source.value], part.cut):
                yield f"{where} cuts the rows of %{part.source}"
        for instr in (i for i in body if isinstance(i, Reshard)):
            slots = ragged.get(instr.source.value)
            moves = [
                [s for s in steps if slots is not None and any(c.dim == 0 for c in cuts_of(s))]
                for steps in (instr.forward, instr.backward)
            ]
            if any(len(steps) > 1 or not _is_of_runs(s) for steps in moves for s in steps):
                yield f"{where} cuts the rows of %{instr.source}"
            elif (instr.rows is not None) != any(moves):
                yield f"{where} moves the rows of %{instr.source} without their numbers, or has numbers for no rows"
            elif instr.rows and {r.value for r in instr.rows} != {counts.get(0 if slots is None else slots)}:
                yield f"{where} moves %{instr.source} by {[str(r) for r in instr.rows]}"
    for function in program.functions:
        for given in (i for i in function.inputs if i.var.name.value in ragged):
            joins = [m.cut for m in given.merges if isinstance(m, Concat)]
            if given.producer in range(len(program.functions)):
                moved = program.functions[given.producer].submesh != function.submesh
                if moved or any(_is_of_rows(values[given.var.name.value], cut) for cut in joins):
                    yield f"{function.name} needs the rows of %{given.var.name} in another way than they are"


def _is_of_runs(step: Step) -> bool:
    """Whether a step moves runs of rows from some devices to others, as their numbers say."""
    return isinstance(step, AllToAll) and not step.source.dim and not step.target.dim


def _is_of_rows(value: Value, cut: Cut) -> bool:
    """Whether an axis is that of rows at their experts."""
    return any(cls < 0 for cls in value.factors[cut.dim])


def _step(step: Step, axes: set[str], dims: int) -> Iterator[str]:
    least = 0 if isinstance(step, Exchange) else 1  # an exchange may only cut off what nobody needs
    if not step.axes or not set(step.axes) <= axes or step.elements < least:
        yield f"{step}"
    cuts: tuple[Cut, ...] = ()
    match step:
        case AllGather():
            cuts = (step.source,)
        case ReduceScatter() | Narrow():
            cuts = (step.target,)
        case AllToAll():
            cuts = (step.source, step.target)
    yield from (f"{step}" for cut in cuts if not cut.dim < dims)


# -- what enters and leaves functions ----------------------------------------------------------------------------------


def _inputs_are_left_for_them(program: Program) -> Iterator[str]:
    arriving = {(m.target_slot, m.consumer): m for m in program.messages if isinstance(m, Transfer)}
    left = [{o.slot: o for o in f.outputs} for f in program.functions]
    for function in program.functions:
        for given in function.inputs:
            where = f"input %{given.var.name} of {function.name}"
            if not 0 <= given.producer < len(program.functions):
                yield f"{where} is of function {given.producer}"
                continue
            producer = program.functions[given.producer]
            transfer = arriving.get((given.slot, function.number))
            if producer.submesh != function.submesh and transfer is None:
                yield f"{where} comes from other devices without a message"
            slot = given.slot if transfer is None else transfer.source_slot
            if slot not in left[producer.number]:
                yield f'{where} is no output of {producer.name}: slot "{slot}"'
            elif given.gradient and not left[producer.number][slot].gradient:
                yield f"{where} has a gradient that {producer.name} does not take"
            if given.time != producer.time:
                yield f"{where} has other indices in time than {producer.name}"
            if not {m.index for m in given.merges} <= set(given.time):
                yield f"{where} merges an index that {producer.name} has not"
            if given.gradient != (given.var.gradient is not None):
                yield f"{where} does not agree with its type about a gradient"


def _outputs_are_made_and_have_a_slot_of_their_own(program: Program) -> Iterator[str]:
    slots = Counter(o.slot for f in program.functions for o in f.outputs)
    slots.update(m.target_slot for m in program.messages if isinstance(m, Transfer))
    yield from (f'slot "{slot}" is used {n} times' for slot, n in slots.items() if n > 1)
    for function in program.functions:
        variables = function.variables()
        for output in function.outputs:
            if output.name not in variables:
                yield f"{function.name} returns %{output.name}, which it does not make"
            elif output.gradient != (variables[output.name].gradient is not None):
                yield f"{function.name} does not agree with the type of %{output.name} about a gradient"


def _parameters_are_where_the_function_is(program: Program) -> Iterator[str]:
    homes = {(p.weight, p.submesh): p for p in program.params}
    prologues = {p.submesh: p for p in program.prologues}
    for function in program.functions:
        for parameter in function.parameters:
            var = parameter.var
            param = homes.get((var.name.value, function.submesh))
            if param is None or param.layout != var.type.layout:
                yield f"{function.name} reads `{var.name}` in a layout in which it does not live on {function.submesh}"
            elif var.gradient is not None and not param.trained:
                yield f"{function.name} leaves a gradient of `{var.name}`, which is not trained"
        for prepared in function.prepared:
            prologue = prologues.get(function.submesh)
            if prologue is None or prepared.source not in prologue.results:
                yield f"{function.name} reads %{prepared.source}, which no prologue of {function.submesh} leaves"


def _the_loss_is_an_output(program: Program) -> Iterator[str]:
    loss = program.loss
    function = program.functions[loss.function]
    outputs = [o.name for o in function.outputs]
    if function.loss is None or outputs[function.loss : function.loss + 1] != [loss.name]:
        yield f"%{loss.name} is not the loss of {function.name}"
    if others := [f.name for f in program.functions if f.loss is not None and f is not function]:
        yield f"{', '.join(others)} have a loss as well"
    if not set(loss.axes) <= {a for a, _ in function.submesh.axes}:
        yield f"the loss is summed over {loss.axes}"


def _results_are_outputs(program: Program) -> Iterator[str]:
    for result in program.results:
        outputs = {o.slot: o for o in program.functions[result.function].outputs}
        output = outputs.get(result.slot)
        if output is None or output.name != result.value or not output.read:
            yield f"result `{result.name}` is no output of {program.functions[result.function].name} that is kept"


# -- parameters and messages -------------------------------------------------------------------------------------------


def _flat_parameters_hold_each_trained_weight_once(program: Program) -> Iterator[str]:
    homes = {(p.weight, p.submesh): p for p in program.params}
    held = Counter((w, f.submesh) for f in program.flats for w in f.weights)
    yield from (f"`{w}` on {s} is in {n} flat parameters" for (w, s), n in held.items() if n > 1)
    for param in program.params:
        if param.trained != ((param.weight, param.submesh) in held):
            yield f"`{param.weight}` on {param.submesh} is {'not ' * param.trained}in a flat parameter"
    for flat in program.flats:
        where, axes = f"flat{flat.number}", dict(flat.submesh.axes)
        weights = [homes.get((w, flat.submesh)) for w in flat.weights]
        if any(p is None or p.dtype != flat.dtype for p in weights):
            yield f"{where} holds weights that are not on {flat.submesh}, or of another dtype"
            continue
        if sum(p.elements for p in weights if p) > flat.elements:
            yield f"{where} has {flat.elements} elements"
        if not set(flat.shard_axes) <= axes.keys() or (flat.zero is Zero.NONE) != (not flat.shard_axes):
            yield f"{where} shards its {flat.zero.value} over {flat.shard_axes}"
        for step in flat.completion:
            if not isinstance(step, SumTiedGrads) and not set(step.axes) <= axes.keys():
                yield f"{where} is completed over {step.axes}"


def _sections_gather_sharded_weights(program: Program) -> Iterator[str]:
    gathered = {w: f for f in program.flats if f.zero is Zero.WEIGHTS for w in f.weights}
    for function in program.functions:
        held: set[int] = set()
        weights = {p.var.name for p in function.parameters if p.var.name.value in gathered}
        for section in function.sections:
            for number in section.gathers:
                flat = program.flats[number] if number < len(program.flats) else None
                if flat is None or flat.zero is not Zero.WEIGHTS or flat.submesh != function.submesh:
                    yield f"{function.name} gathers flat{number}"
            held.update(section.gathers)
            for read in (r for i in section.body for r in reads_of(i)):
                if read in weights and not any(read.value in program.flats[n].weights for n in held):
                    yield f"{function.name} reads `{read}` without gathering it"


def _messages_are_between_their_functions(program: Program) -> Iterator[str]:
    for message in program.messages:
        where = f"message{message.number}"
        ends = [program.functions[n] for n in (message.producer, message.consumer)]
        if [f.submesh for f in ends] != [message.source, message.target]:
            yield f"{where} is not between the devices of {ends[0].name} and {ends[1].name}"
        yield from (f"{where}: {p}" for p in _move(message.forward, message.source, message.target))
        match message:
            case Signal():
                continue
            case Transfer():
                if message.backward is not None:
                    yield from (f"{where}: {p}" for p in _move(message.backward, message.target, message.source))
                if message.time != ends[0].time:
                    yield f"{where} has other indices in time than {ends[0].name}"
                given = [i for i in ends[1].inputs if i.slot == message.target_slot]
                if not given or any(i.gradient for i in given) != (message.backward is not None):
                    yield f"{where} is not read by {ends[1].name}, or only one of them has a gradient"


def _move(move: Move, source: Submesh, target: Submesh) -> Iterator[str]:
    """Aligned axes are of both ends and of one size; boxes lie in the tensors and are as large on both ends."""
    before, after = dict(source.axes), dict(target.axes)
    yield from (f"`{a}` is not aligned" for a in move.aligned if before.get(a) != after.get(a) or a not in before)
    ranges = [[n for a, n in axes.items() if a not in move.aligned] for axes in (before, after)]
    filled: Counter[tuple[int, ...]] = Counter()
    for piece in move.pieces:
        for at, sizes in zip((piece.source, piece.target), ranges, strict=True):
            if len(at) != len(sizes) or not all(0 <= c < n for c, n in zip(at, sizes, strict=False)):
                yield f"{at} is no device"
        for box, shape in ((piece.source_box, move.source_shape), (piece.target_box, move.target_shape)):
            if not _lies_in(box, shape):
                yield f"{box} is not inside {shape.factors}"
        if [n for _, n in piece.source_box] != [n for _, n in piece.target_box]:
            yield f"{piece.source_box} is sent to {piece.target_box}"
        size = 1
        for _, n in piece.target_box:
            size *= n
        filled[piece.target] += size
    everyone = itertools.product(*map(range, ranges[1]))
    if wrong := [at for at in everyone if filled[at] != move.target_shape.numel]:
        yield f"devices {wrong} do not receive all of their part, or some of it twice"


def _lies_in(box: tuple[tuple[int, int], ...], shape: Shape) -> bool:
    inside = zip(box, shape.factors, strict=False)
    return len(box) == len(shape.factors) and all(start >= 0 and start + n <= size for (start, n), size in inside)


# -- walks -------------------------------------------------------------------------------------------------------------


def _given(function: Function) -> list[Var]:
    named = [*(i.var for i in function.inputs), *(p.var for p in function.prepared)]
    return [*named, *(p.var for p in function.parameters)]


def _bodies(program: Program) -> Iterator[tuple[str, list[Instr], list[Var]]]:
    """Every function and prologue with its instructions and what enters it."""
    for function in program.functions:
        yield function.name, list(function.body()), _given(function)
    for prologue in program.prologues:
        yield _called(prologue), list(prologue.body), list(prologue.given)


def _placed(program: Program) -> Iterator[tuple[str, list[Instr], Submesh]]:
    for function in program.functions:
        yield function.name, list(function.body()), function.submesh
    for prologue in program.prologues:
        yield _called(prologue), list(prologue.body), prologue.submesh


def _typed(program: Program) -> Iterator[tuple[str, list[Var], Submesh, set[str]]]:
    """Every function and prologue with its local values, its submesh and its indices in time."""
    for function in program.functions:
        # the gradient of an input may have digits of its producer's indices
        times = {t.name for t in (*function.time, *(t for i in function.inputs for t in i.time))}
        yield function.name, list(function.variables().values()), function.submesh, times
    for prologue in program.prologues:
        made = [v for i in prologue.body for v in results_of(i)]
        yield _called(prologue), [*prologue.given, *made], prologue.submesh, set()


def _called(prologue: Prologue) -> str:
    return f"the prologue of {prologue.submesh}"


ROWS: tuple[Row, ...] = (
    _numbers_are_positions,
    _every_operator_is_in_one_function,
    _operators_read_and_leave_what_the_graph_says,
    _names_are_defined_once_and_before_use,
    _conversions_keep_their_value,
    _layouts_have_a_place_for_each_axis,
    _steps_are_along_axes_of_the_submesh,
    _rows_at_experts_stay_as_they_are,
    _inputs_are_left_for_them,
    _outputs_are_made_and_have_a_slot_of_their_own,
    _parameters_are_where_the_function_is,
    _the_loss_is_an_output,
    _results_are_outputs,
    _flat_parameters_hold_each_trained_weight_once,
    _sections_gather_sharded_weights,
    _messages_are_between_their_functions,
    *ROLE_ROWS,
)
