"""What a torchtitan configuration asks for, as widths of a plan: its degrees, its stages, its batch."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from ssdsl.importers.errors import WorldTooSmall
from ssdsl.importers.titan.keys import OF_PIPELINE, OFF, SCHEDULES, SINGLE, V_SHAPED
from ssdsl.importers.titan.models import NamedModel, flavors, named
from ssdsl.importers.titan.setting import UnreadValue
from ssdsl.importers.widths import Keeps, Meeting, Net, Widths, problem
from ssdsl.record import Record, field, replace
from ssdsl.text.diagnostic import PlanError

LARGEST = 4096  # of the data parallelism that is looked for where it is left open
MakeTable = Callable[
    [str, int, int, int], tuple[str, str] | str
]  # a schedule as the name of a file and its text, or why not


class TitanWidths(Record):
    """What is asked for. `refused` are the keys that are not done, with the reasons; `notes` are comments of the plan;
    `files` are tables beside it."""

    widths: Widths
    net: Net
    named: NamedModel | None
    refused: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()


class ConfigReader:
    """The values of a configuration by key, and what becomes of them, step by step."""

    def __init__(self, values: Mapping[str, Any], devices: int | None, old: bool, table: MakeTable) -> None:
        self.values, self.devices, self.old, self.table = values, devices, old, table
        self.refused = dict[str, str]()
        self.notes = list[str]()
        self.files = list[tuple[str, str]]()

    def number(self, key: str, default: int) -> int:
        """The number that a key sets."""
        value = self.values.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if value is not None:
            self.refuse(key, self._unread(value, "a number"))
        return default

    def word(self, key: str, default: str) -> str:
        """The word that a key sets."""
        value = self.values.get(key, default)
        if isinstance(value, str | bool | int):
            return str(value)
        if value is not None:
            self.refuse(key, self._unread(value, "a word"))
        return default

    def _unread(self, value: Any, kind: str) -> str:
        return f"`{value.expression}` is not plain" if isinstance(value, UnreadValue) else f"this is not {kind}"

    def refuse(self, key: str, reason: str) -> None:
        """Notes that a key is not done."""
        self.refused.setdefault(key, reason)

    # -- all of it -----------------------------------------------------------------------------------------------------

    def read(self) -> TitanWidths:
        """What is asked for. Raises PlanError if the degrees do not fit the devices."""
        model = self.model()
        widths = self.pipeline(self.degrees(model), model)
        widths = self.data(widths, model)
        widths = replace(widths, state=self.state(widths))
        if widths.state is not None and self.values.get("training.enable_cpu_offload") is True:
            kept = Keeps.WEIGHTS if widths.state is Keeps.WEIGHTS else Keeps.OPTIMIZER
            inside = widths.tensor if 0 < widths.expert_tensor < widths.tensor else 1
            whole = widths.experts > 1 and widths.shards * widths.context * inside == widths.experts
            if whole:
                self.notes.append("Each device has its experts whole, so they stay there.")
            widths = replace(widths, to_host=(f"{'others' if whole else 'model'}.{kept}",))
        widths = self.recompute(widths, model)
        batch, widths = self.batch(widths)
        net = Net() if model is None else model.net(self.sequence(), batch)
        if model is not None and model.layers in (widths.before or ()):
            net = replace(net, behind="norm")  # a stage of norm and scores alone
        return TitanWidths(widths, net, model, self.refused, tuple(self.notes), tuple(self.files))

    def model(self) -> NamedModel | None:
        """The model, if it is known here."""
        name, flavor = self.word("model.name", ""), self.word("model.flavor", "debugmodel")
        if not name:
            return None
        found = named(name, flavor)
        if found is None:
            known = flavors(name)
            there = f"of its flavors there are {', '.join(known)} here" if known else "there is none of this name here"
            self.refuse("model.name" if not known else "model.flavor", f"{there}: give the model as `--model`")
            self.notes.append("Its model is none of ssdsl's: give --model.")
        elif found.different:
            self.notes.append(f"The model here: {found.different}.")
        return found

    def sequence(self) -> int:
        """The length of a sequence."""
        return self.number("training.max_context_length", self.number("training.seq_len", 2048))

    # -- degrees -------------------------------------------------------------------------------------------------------

    def degrees(self, model: NamedModel | None) -> Widths:
        """The degrees but that of data parallelism, which may be what they leave."""
        context = self.number("parallelism.context_parallel_degree", 1)
        rotates = self.word("parallelism.context_parallel_rotate_method", "alltoall" if self.old else "allgather")
        attention = Meeting.RING if rotates == "alltoall" else Meeting.GATHER
        if rotates not in ("alltoall", "allgather"):
            self.refuse("parallelism.context_parallel_rotate_method", "the methods are allgather and alltoall")
        balancer = self.values.get("parallelism.context_parallel_load_balancer", "headtail")
        if balancer != "headtail":
            self.refuse("parallelism.context_parallel_load_balancer", "parts of the sequence are dealt zigzag")
        tensor = self.number("parallelism.tensor_parallel_degree", 1)
        sequence = self.values.get("parallelism.enable_sequence_parallel", True) is not False
        experts = self.number("parallelism.expert_parallel_degree", 1)
        own = self.number("parallelism.expert_tensor_parallel_degree", 1)
        if experts > 1 and (model is None or model.family.experts is None):
            why = "the model is not known here, nor are its experts" if model is None else "the model has no experts"
            self.refuse("parallelism.expert_parallel_degree", why + ("" if model is None else ": ignored there, too"))
            experts = 1
        return Widths(
            tensor=tensor,
            sequence=sequence and tensor > 1,
            context=context,
            attention=attention,
            experts=experts,
            expert_tensor=own if experts > 1 else 0,
        )

    def data(self, widths: Widths, model: NamedModel | None) -> Widths:
        """The widths with those of data parallelism."""
        copies = self.number("parallelism.data_parallel_replicate_degree", 1)
        shards = self.number("parallelism.data_parallel_shard_degree", -1)
        rest = copies * widths.context * widths.tensor * widths.stages
        if self.values.get("training.data_parallel_type") == "ddp":
            copies, shards = max(1, shards if shards > 0 else (self.devices or 2 * rest) // rest), 1
        if shards > 0:
            found = self._with_shards(widths, copies, shards)
            if self.devices is not None and rest * shards != self.devices:
                self.notes.append(f"The degrees are of {rest * shards} devices, the command starts {self.devices}.")
        elif self.devices is not None:
            if self.devices % rest or self.devices < rest:
                raise PlanError(WorldTooSmall(None, self.devices, rest))
            found = self._with_shards(widths, copies, self.devices // rest)
        else:
            fitting = (self._with_shards(widths, copies, n) for n in range(2, LARGEST))
            found = next((w for w in fitting if not problem(w) and self._fits(w)), self._with_shards(widths, copies, 2))
            parts = found.data // copies
            self.notes += [
                f"data_parallel_shard_degree = -1 takes what is left of the devices: {parts} here, of {rest * parts}.",
                "With more of them the batch of the model grows, too.",
            ]
        if why := problem(found):
            for key in ("parallelism.expert_parallel_degree", "parallelism.expert_tensor_parallel_degree"):
                self.refuse(key, why)
            found = replace(found, experts=1, expert_tensor=0)
        return found

    def _with_shards(self, widths: Widths, copies: int, shards: int) -> Widths:
        return replace(widths, data=copies * shards, shards=shards)

    def _fits(self, widths: Widths) -> bool:
        batch = self.number("training.global_batch_size", -1)
        return batch <= 0 or batch % (self.rows() * widths.data) == 0

    def state(self, widths: Widths) -> Keeps | None:
        """What lies in parts. By default a pipeline keeps the weights that it has gathered."""
        if widths.shards * widths.context == 1:
            return None
        key = "parallelism.fsdp_reshard_after_forward"
        again = self.word(key, "default").lower()
        if again not in ("default", "always", "true", "never", "false"):
            self.refuse(key, "the policies are default, always and never")
        never = again in ("never", "false") or (again not in ("always", "true") and widths.stages > 1)
        return Keeps.GRADS if never else Keeps.WEIGHTS

    # -- stages --------------------------------------------------------------------------------------------------------

    def pipeline(self, widths: Widths, model: NamedModel | None) -> Widths:
        """The widths with stages and their schedule."""
        stages = self.number("parallelism.pipeline_parallel_degree", 1)
        if stages == 1:
            for key in OF_PIPELINE:
                if self.values.get(key) not in (*OFF, 1, "1F1B"):
                    self.refuse(key, "ignored there, too: the pipeline has one device")
            return widths
        schedule = self.word("parallelism.pipeline_parallel_schedule", "1F1B").lower()
        csv = self.values.get("parallelism.pipeline_parallel_schedule_csv")
        if schedule not in SCHEDULES and not csv:
            self.refuse("parallelism.pipeline_parallel_schedule", f"the schedules are {', '.join(SCHEDULES)}")
            schedule = "1f1b"
        before, total = self.cut(stages, schedule in SINGLE and not csv, model)
        chunks = total // stages
        shaped = schedule in V_SHAPED and not csv
        if total % stages or (shaped and chunks != 2):
            self.refuse("parallelism.pipeline_parallel_split_points", f"{total} stages are none for {stages} devices")
            chunks, before = 2 if shaped else 1, None
        micro = self.micro(stages * chunks)
        found = replace(
            widths,
            stages=stages,
            chunks=chunks,
            before=before,
            micro=micro,
            v_shaped=shaped,
            schedule=SCHEDULES.get(schedule, "") or "one_f_one_b",
        )
        known = SCHEDULES.get(schedule) and not (schedule.startswith(("inter", "flex")) and micro % stages)
        if csv or not known:
            return self._from_table(found, str(csv or ""), schedule)
        if schedule == "dualpipev" and micro < 2 * stages:
            key = "parallelism.pipeline_parallel_schedule"
            self.refuse(key, f"it has as many micro-batches as stages: {2 * stages}, not {micro}")
            return replace(found, schedule="zb_v")
        return found

    def _from_table(self, widths: Widths, csv: str, schedule: str) -> Widths:
        """The widths with a schedule that no function has: a table beside the plan."""
        key = "parallelism.pipeline_parallel_schedule" + ("_csv" if csv else "")
        found = self.table(csv or schedule, widths.stages, widths.chunks, widths.micro)
        if isinstance(found, str):
            self.refuse(key, found)
            return replace(widths, chunks=1, before=None, schedule="one_f_one_b")
        name, text = found
        self.files.append((name, text))
        return replace(widths, schedule=name.removesuffix(".ssp"), table=name)

    def micro(self, stages: int) -> int:
        """The number of micro-batches of one pass of the pipeline."""
        given = self.number("parallelism.num_pp_microbatches", 0)
        given = given or self.number("parallelism.pipeline_parallel_microbatches", 0)
        if given:
            return given
        if self.old:
            return stages
        rows = self.number("training.local_batch_size", 8)
        size = self.number("parallelism.pipeline_parallel_microbatch_size", 1)
        if size < 1 or rows % size:
            self.refuse("parallelism.pipeline_parallel_microbatch_size", f"it does not divide the batch of {rows}")
            return rows
        return rows // size

    def cut(self, stages: int, single: bool, model: NamedModel | None) -> tuple[tuple[int, ...] | None, int]:
        """The layers with which stages begin, None for equal ones, and the number of all stages."""
        layers = model.layers if model is not None else None
        points = self._points()
        if points is not None:
            return points, len(points) + 1
        parts = self.values.get("parallelism.module_fqns_per_model_part")
        if isinstance(parts, list) and parts and layers is not None:
            return _begins(parts, layers), len(parts)
        first = self.number("parallelism.pipeline_parallel_first_stage_less_layers", 1)
        last = self.number("parallelism.pipeline_parallel_last_stage_less_layers", 1)
        each = self.number("parallelism.pipeline_parallel_layers_per_stage", 0)
        total = stages * (1 if single else 2)
        if each and layers is not None:
            total = math.ceil((layers + first + last) / each)
            if total % stages or (total == stages) != single:
                key = "parallelism.pipeline_parallel_layers_per_stage"
                self.refuse(key, f"it makes {total} stages, which {stages} devices of this schedule do not take")
                total = stages * (1 if single else 2)
        if layers is None:
            return None, total
        found = by_split_points(total, layers) if self.old else by_weights(total, layers, first, last)
        if found is None:
            self.refuse("parallelism.pipeline_parallel_degree", f"{layers} layers are too few for {total} stages there")
        return found, total

    def _points(self) -> tuple[int, ...] | None:
        key = "parallelism.pipeline_parallel_split_points"
        value = self.values.get(key)
        points = value.split(",") if isinstance(value, str) and value else value
        if not isinstance(points, list) or not points:
            return None
        found = [re.fullmatch(r"layers\.(\d+)", str(point).strip()) for point in points]
        if not all(found):
            self.refuse(key, "its points are no layers")
            return None
        return tuple(int(point[1]) for point in found if point)

    # -- the rest ------------------------------------------------------------------------------------------------------

    def recompute(self, widths: Widths, model: NamedModel | None) -> Widths:
        """The widths with what is computed again."""
        mode = self.values.get("activation_checkpoint.mode", "none" if not self._asks_for("activation_c") else "?")
        option = self.word("activation_checkpoint.selective_ac_option", "2")
        each = "model" if model is None else f'model["{model.family.layers}"]'
        every = int(option) if option.isdigit() else 1
        match mode if mode != "?" else "selective":
            case "none" | None | False:
                return widths
            case "full":
                return replace(widths, recompute=(each,))
            case "selective" if option.isdigit() and every < 2:
                return replace(widths, recompute=(each,))
            case "selective" if option.isdigit() and model is not None:
                count = model.layers // every
                number = f"{every} * n + {every - 1}"
                some = f'[each("{model.family.layers}")[{number}] for n in 0..{count}]'
                return replace(widths, recompute=(some,) if count else ())
            case "selective" if option == "op" and model is not None:
                return replace(widths, recompute=(model.recomputed(),))
            case "selective" if model is None:
                self.refuse("activation_checkpoint.mode", "the layers of a model that is not known here")
            case "selective":
                self.refuse("activation_checkpoint.selective_ac_option", 'the options are a number and "op"')
            case "memory_budget":
                self.refuse("activation_checkpoint.mode", "what is kept is said by name: `recompute model[...]`")
            case _:
                self.refuse("activation_checkpoint.mode", "the modes are none, full, selective and memory_budget")
        return widths

    def _asks_for(self, section: str) -> bool:
        return any(key.startswith(section) for key in self.values)

    def rows(self) -> int:
        """The samples of a replica in one pass."""
        tokens = self.number("training.num_tokens_per_microbatch_per_dp_rank", 0)
        if tokens:
            return max(1, tokens // self.sequence()) * self.number("parallelism.num_pp_microbatches", 1)
        return self.number("training.local_batch_size", 8)

    def batch(self, widths: Widths) -> tuple[int, Widths]:
        """The batch of all devices, and the widths with the passes that make one step."""
        whole = self.number("training.global_batch_size", -1)
        key = "training.global_batch_size"
        if (tokens := self.number("training.num_tokens_per_train_step", -1)) > 0:
            whole, key = tokens // self.sequence(), "training.num_tokens_per_train_step"
        one = self.rows() * widths.data
        if whole <= 0:
            return one, widths
        if whole % one:
            self.refuse(key, f"{one} samples in one pass do not divide it")
            return one, widths
        passes = whole // one
        if widths.table and passes > 1:
            self.refuse(key, f"the table is of one pass, the batch of {passes}")
            return one, widths
        return whole, replace(widths, micro=widths.micro * passes)


def by_weights(stages: int, layers: int, first: int, last: int) -> tuple[int, ...] | None:
    """The layers with which stages but the first begin, if embedding and scores weigh as much as some layers; None if
    there are too few.

    >>> by_weights(4, 6, 1, 1)
    (1, 3, 5)
    """
    each, more = divmod(layers + first + last, stages)
    if not each or first > each or last > each:
        return None
    counts = [each + (stage < more) for stage in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(min(layers, sum(counts[:stage])) for stage in range(1, stages))


def by_split_points(stages: int, layers: int) -> tuple[int, ...] | None:
    """As `by_weights`, by the rule of torchtitan's first versions: stages behind the first get the layers that are
    over.

    >>> by_split_points(4, 6)
    (1, 3, 5)
    """
    if stages > layers:
        return None
    each, more = divmod(layers, stages)
    return tuple(each * stage + min(stage - 1, more) for stage in range(1, stages))


def _begins(parts: list[Any], layers: int) -> tuple[int, ...]:
    """The first layer of each part but the first; that of the next one for a part without layers."""
    found = list[int]()
    following = layers
    for part in reversed(parts[1:]):
        numbers = [int(n[1]) for name in part if (n := re.fullmatch(r"layers\.(\d+)", str(name)))]
        following = min(numbers) if numbers else following
        found.insert(0, following)
    return tuple(found)
