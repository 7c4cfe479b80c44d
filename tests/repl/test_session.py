"""Statements say what they did; a mistake, a value and a command leave the plan as it was."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssdsl.cli.app import app
from ssdsl.cli.commands.show import ViewName
from ssdsl.cluster.load import cluster_file, read_cluster_file
from ssdsl.lang.assets import assets_folder
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.model.graph import Graph, Stage
from ssdsl.plan.interpret import interpret_all, plan_of
from ssdsl.plan.plan import Plan
from ssdsl.record import replace
from ssdsl.repl.commands import COMMANDS
from ssdsl.repl.errors import OF_FILES, OF_NONE
from ssdsl.text.source import Source
from tests.repl.conftest import machine

Entering = Any


def facts(plan: Plan) -> tuple[Any, ...]:
    """What a plan says, wherever in a text it says it."""
    clocks = [[(row.tasks, row.time) for row in clock.rows] for clock in plan.clocks]
    orders = [(o.before, o.after) for o in plan.orders]
    meshes = [(m.name, m.axes, m.first) for m in plan.meshes]
    shards = [(s.state, s.weights, s.axes) for s in plan.state.shards]
    return meshes, plan.params, plan.operators, orders, clocks, shards


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("param T = 2", "param T = 2"),
        ("let half = 0.5 * S", "let half: 1.0"),
        ("let turn(m, chunk) = m * S + chunk", "let turn(m, chunk): m * S + chunk"),
        ("let first = gpus[pp = 0]", "let first: gpus[pp = 0] (2 devices)"),
        ("let names = 0..4", "let names: 0..4, 4 numbers"),
        ("let attn = model.scaled_dot_product_attention", "let attn: N operators"),
        ("mesh more(ep = 3)", "mesh more: 3 devices (ep = 3)"),
        ("split model by ffn into tp", "split N operators by ffn into 2 parts, tp, over gpus"),
        (
            "split model by vocab into v = [100, 412]",
            "split N operators by vocab into 2 parts (100 and 412), v, in time",
        ),
        ("split model.weights by row into tp", "split 52 weights by row over tp"),
        ("split model.grads by row into tp", "split the gradients of 52 weights by row over tp"),
        ("keep model.weights through m", "52 weights kept through m"),
        ("assign model.optimizer to host", "the optimizer's state of 52 weights lies on the host"),
        ("precision model.addmm to bf16", "N operators compute in bfloat16"),
        (
            "either:\n    recompute model\nor:\n    prefetch model by 2",
            "recompute N operators in backward, in 6 checkpoints\n"
            "either:8: the first branch, in 1 turn; a search tries the others",
        ),
        ("assign model.activations to host", "what backward keeps of N operators lies on the host"),
        ("dim wide = model.tanh.ffn", "dim wide: a further name of `ffn`"),
        ("order stage[0].fwd[m = 0] -> stage[0].bwd[m = 0]", "ordered 1 pair of tasks"),
        ("one_f_one_b(stage, 4)", "sorted 16 tasks by clock"),
        ("gpipe(stage, 4)", "ordered 20 pairs of tasks"),
        ('recompute model["h.*"]', "recompute N operators in backward, in 4 checkpoints"),
        ('require S > 1, "why"', "this holds"),
        ("split model by heads into tp", "no change: the plan already says this"),
        ("def f(x):\n    return x + 1\n", "def f(x): a function"),
        ("for s in 0..S:\n    order stage[s].fwd -> stage[s].bwd", "ordered 2 pairs of tasks"),
        ("# a comment", ""),
        ("", ""),
    ],
)
def test_a_statement_says_what_it_did(planned: Entering, line: str, said: str) -> None:
    assert re.sub(r"\d+ operators", "N operators", planned(line)) == said, planned.text
    assert not planned.failed
    assert planned.text.endswith(f"{line.strip()}\n" if line else "gpipe\n")


def test_the_statements_of_a_plan(enter_: Entering) -> None:
    assert enter_("param S = 2 # stages") == "param S = 2"
    assert enter_("mesh gpus(pp = S, tp = 2)") == "mesh gpus: 4 devices (pp = 2, tp = 2)"
    assert enter_("split model by batch into m = 4").endswith("by batch into 4 parts, m, in time")
    assert enter_("let stage = balance(model, S)").startswith("let stage: a list of 2 selections (")
    lines = enter_("assign stage[s] to gpus[pp = s] for s in 0..S").split("\n")
    assert [line.split(" to ")[1] for line in lines] == ["gpus[pp = 0] (2 devices)", "gpus[pp = 1] (2 devices)"]
    assert enter_("use pipeline: gpipe") == "use gpipe(stage, M): a function of stdlib/pipeline.ssp"
    assert "param S = 2  # stages\n" in enter_.text


def test_a_param_of_the_command_line(with_four_stages: Entering, tmp_path: Path) -> None:
    enter_ = with_four_stages
    assert enter_("param S = 2") == "param S = 4, from --set"
    assert enter_("2 * S") == "8"
    said = enter_(f":save {tmp_path / 'p.ssp'}")
    assert " ".join(said.split()).endswith("it is this plan with --set S=4")


def test_the_operators_that_are_counted_are_those_that_a_plan_places(planned: Entering, gpt: Graph) -> None:
    computing = [op for op in gpt.operators if op.stage is Stage.COMPUTE]
    wide = sum(any(d.name == "ffn" for d in op.dims) for op in computing)
    assert planned("split model by ffn into f = 2") == f"split {wide} operators by ffn into 2 parts, f, in time"
    planned(":undo 3")
    assert planned("assign model to gpus") == f"assigned {len(computing)} operators to gpus (4 devices)"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("2 * S", "4"),
        ("S > 1", "true"),
        ("len(stage)  # how many", "2"),
        ("[1, S]", "[1, 2]"),
        ('"text"', '"text"'),
        ("one_f_one_b", "a function"),
        ("gpus", "gpus (4 devices)"),
        ("model.scaled_dot_product_attention.weights", "the weights of 4 operators"),
    ],
)
def test_a_value_is_shown_and_not_kept(planned: Entering, value: str, said: str) -> None:
    before = planned.session
    assert planned(value) == said
    assert planned.session is before and not planned.failed


def test_a_selection_is_shown_with_what_it_is_made_of(planned: Entering) -> None:
    said = planned('model["h.*.attn"].addmm')
    assert said.startswith("8 operators\n")
    for words in ("8 addmm", "transformer.h.{0-3}.attn.c_attn", "heads=4", "tp=2 by heads", "gpus[pp = 0] (4)"):
        assert words in said
    assert planned("stage[0].fwd[m = 1]").startswith(".fwd, m = 1 of ")


@pytest.mark.parametrize(
    ("line", "code", "place"),
    [
        ("split model by hedas into tp", "E0204", "plan:8:16"),
        ("splt model by heads into tp", "E0110", "plan:8:1"),
        ("let S = 3", "E0202", "plan:8:5"),
        ('model["h.*"].linaer', "E0241", "plan:8:14"),
        ("1 // 0", "E0212", "plan:8:6"),
        ("assign model to gpus", "E0253", "plan:8:1"),
        ("mesh other(a = 2", "E0114", "plan:8:11"),
        ("for s in 0..3:\n    order stage[s].fwd -> stage[s].bwd", "E0211", "plan:9:17"),
        ("let a = 1\nlet a = 2", "E0202", "plan:9:5"),
        ("one_f_one_b(stage)", "E0229", "plan:8:1"),
    ],
)
def test_a_mistake_leaves_the_plan_as_it_was(planned: Entering, line: str, code: str, place: str) -> None:
    before = planned.session
    said = planned(line)
    assert planned.failed and planned.session is before
    assert f"error[{code}]" in said and place in said


def test_a_loop_that_fails_in_its_second_turn_says_nothing(planned: Entering) -> None:
    before = facts(plan_of(planned.session.facts.context))
    planned("for s in 0..3:\n    recompute stage[s]")
    assert planned.failed and facts(plan_of(planned.session.facts.context)) == before
    assert planned("recompute stage[0]").startswith("recompute")


def test_an_order_that_relates_nothing_is_taken_with_a_warning(planned: Entering) -> None:
    said = planned("order stage[0].fwd[m = 9] -> stage[1].fwd[m = 9]")
    assert "warning[E0257]" in said and not planned.failed
    assert "warning" not in planned("param T = 2")


def test_undo_goes_back_statement_by_statement(planned: Entering) -> None:
    before = planned.text
    planned("let a = 1\nlet b = 2\nfor s in 0..S:\n    recompute stage[s]")
    assert planned(":undo") == "took back `for s in 0..S:` and 1 line below"
    assert planned.text == before + "let a = 1\nlet b = 2\n"
    planned(":undo 2")
    assert planned.text == before
    assert "E0803" in planned(":undo 8") and planned.text == before
    planned(":undo 7")
    assert planned.text == "" and "E0803" in planned(":undo")
    assert planned("param S = 3") == "param S = 3"


def test_redo_brings_back_what_undo_took(planned: Entering) -> None:
    planned("let a = 1\nfor s in 0..S:\n    recompute stage[s]")
    whole = planned.text
    planned(":undo 2")
    assert planned(":redo") == "brought back `let a = 1`" and planned.text != whole
    assert planned("redo") == "brought back `for s in 0..S:` and 1 line below" and planned.text == whole
    assert "E0807" in planned(":redo")
    planned(":undo")
    planned("let b = 2")
    assert "E0807" in planned(":redo") and planned.text.endswith("let b = 2\n")


def test_params_are_set(planned: Entering) -> None:
    before = planned.text
    assert planned(":set S=4") == "S = 4, was 2" and planned.text == before
    assert planned("len(stage)").endswith("4")
    assert "E0248" in planned(":set S=99") and planned("len(stage)").endswith("4")
    assert planned(":set S") == "S = 2, was 4"
    assert "did you mean `S`" in planned(":set s=4") and "E0802" in planned(":set S=x")


def test_another_cluster_and_model(planned: Entering, gpt: Graph, tmp_path: Path) -> None:
    outside = replace(planned.session.outside, on_cluster=machine, capture=lambda name: gpt)
    planned.session = replace(planned.session, outside=outside)
    planned("one_f_one_b(stage, 4)")
    first = planned(":simulate")
    assert planned(":cluster v100x32") == "from now on on `v100x32`"
    assert "h200x8" in first and "v100x32" in planned(":simulate")
    assert "E0601" in planned(":cluster b200")
    assert planned(":model gpt").startswith("the plan is now for gpt: ")
    page = tmp_path / "step.html"
    assert planned(f":html {page}") == f"saved {page}: open it in a browser" and "one_f_one_b" in page.read_text()
    assert '"peak_share":' in page.read_text()


def test_communication_is_chosen_for_the_cluster(planned: Entering, tmp_path: Path) -> None:
    """What two devices hold whole goes in halves to another node over slow links, and is gathered there."""
    text = read_cluster_file(cluster_file("a100x1024"), "a100x1024").text
    pairs = tmp_path / "pairs.toml"
    pairs.write_text(
        text.replace("devices = 8", "devices = 2").replace("bandwidth_gb_s = 22.5", "bandwidth_gb_s = 0.1")
    )
    outside = replace(planned.session.outside, on_cluster=machine)
    planned.session = replace(planned.session, outside=outside)
    planned("one_f_one_b(stage, 4)")
    halves = "value at equal (tp): [1, 64, 128] to [1, 64, 128]"
    assert halves not in planned(":show program")
    planned(f":cluster {pairs}")
    assert halves in planned(":show program")


def test_a_loaded_plan_keeps_its_comments_and_can_be_taken_back(enter_: Entering) -> None:
    enter_("let mine = 1")
    said = enter_(":load megatron")
    assert "megatron.ssp: 16 statements" in said and "sorted 16 tasks by clock" in said
    path = assets_folder("examples") / "megatron.ssp"
    source = Source("", path.read_text("utf-8"))
    assert enter_.text == format_script(parse(source), source) and "# dp: in space." in enter_.text
    assert enter_(":undo") == "took back `one_f_one_b(stage, M)`"
    said = enter_("one_f_one_b(stage, 2)")
    assert said.startswith("sorted 8 tasks by clock") and "warning[E0277]" in said  # for M = 4
    enter_(":undo 15")
    assert enter_(":undo") == "took back what was left of " + str(path)
    assert enter_.text == "let mine = 1\n"


@pytest.mark.parametrize("name", ["megatron", "zero", "zero_bubble", "interleaved", "co_shard"])
def test_what_is_saved_is_the_same_plan(enter_: Entering, gpt: Graph, tmp_path: Path, name: str) -> None:
    enter_(f":load {name}")
    assert not enter_.failed
    path = tmp_path / "saved.ssp"
    assert enter_(f":save {path}").startswith(f"saved {path}: ")
    text = path.read_text("utf-8")
    source = Source("saved.ssp", text)
    assert format_script(parse(source), source) == text
    saved = interpret_all(parse(source), gpt, {}, tmp_path)[0]
    assert facts(saved) == facts(plan_of(enter_.session.facts.context))
    assert list(tmp_path.iterdir()) == [path]


def test_save_overwrites_only_when_told(planned: Entering, tmp_path: Path) -> None:
    path = tmp_path / "p.ssp"
    path.write_text("# mine\n")
    assert "E0804" in planned(f":save {path}") and path.read_text() == "# mine\n"
    planned(f":save! {path}")
    assert path.read_text() == planned.text
    assert "E0805" in planned(f":save {tmp_path / 'nowhere' / 'p.ssp'}")
    (tmp_path / "folder.ssp").mkdir()
    assert "E0805" in planned(f":save {tmp_path / 'folder'}")  # `:save!` would not help
    planned(f":save {tmp_path / 'other'}")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.ssp", "other.ssp", "p.ssp"]


def test_save_refuses_where_a_used_file_would_not_be_found(enter_: Entering, tmp_path: Path) -> None:
    (tmp_path / "mine.ssp").write_text("let three = 3\n")
    (tmp_path / "sub").mkdir()
    assert enter_('use "mine.ssp": three') == "let three: 3"
    assert "E0234" in enter_(f":save {tmp_path / 'sub' / 'p.ssp'}")
    assert not list((tmp_path / "sub").iterdir())


def test_a_save_that_fails_leaves_no_half(planned: Entering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.ssp"
    path.write_text("# mine\n")

    def full(self: Path, *_: Any, **__: Any) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert "no space left on device" in planned(f":save! {path}")
    assert path.read_text() == "# mine\n" and list(tmp_path.iterdir()) == [path]


def test_an_incomplete_plan_is_saved_and_shown_but_not_checked(planned: Entering, tmp_path: Path) -> None:
    planned(":undo 2")
    assert "nowhere" in planned(":show ops") and not planned.failed
    assert "E0252" in planned(":check") and planned.failed
    assert "E0252" in planned(":simulate")
    planned(f":save {tmp_path / 'p.ssp'}")
    assert not planned.failed


@pytest.mark.parametrize("view", ViewName)
def test_each_view_of_the_command_has_a_word(planned: Entering, view: str) -> None:
    assert (shown := planned(f":show {view}")) and not planned.failed
    assert planned(f":{view}") == shown and not planned.failed


def test_prove(planned: Entering) -> None:
    assert planned(":prove").startswith("proved in ") and not planned.failed
    assert planned(":explain E0203") == planned(":help E0203") and not planned.failed
    assert "a code, as in error[E0203]" in planned(":explain E9999") and planned.failed


def test_help_on_a_command(planned: Entering) -> None:
    assert planned(":help :prove") == planned(":help prove") and "prove that the plan computes" in planned(
        ":help prove"
    )
    assert "`:show comm`" in planned(":help comm") and "`split" not in planned(":help :comm")
    assert planned(":help split").startswith("split model by batch")


@pytest.mark.parametrize(("typed", "command"), [("p", "plan"), ("m", "model"), ("d", "diff"), ("sched", "schedule")])
def test_the_beginning_of_a_command_is_enough(planned: Entering, typed: str, command: str) -> None:
    assert planned(f":{typed}") == planned(f":{command}")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("coom", "did you mean `:comm`?"),
        ("proove", "did you mean `:prove`?"),
        ("verify", "`ssdsl verify` is a command of the shell: `:save FILE`"),
        ("clusters", "`ssdsl clusters` is a command of the shell"),
    ],
)
def test_a_command_that_a_session_lacks(planned: Entering, typed: str, said: str) -> None:
    assert said in planned(f":{typed}") and planned.failed


def test_each_command_of_the_shell_is_known() -> None:
    """Either a session has it, by the same or by another name, or says that the shell does."""
    shell = {command.name or command.callback.__name__.strip("_") for command in app.registered_commands}
    shell |= {group.name for group in app.registered_groups}
    assert shell - {*COMMANDS, *OF_FILES, *OF_NONE} == {"repl", "lsp"}


def test_check(planned: Entering) -> None:
    assert "the plan is complete and free of deadlock" in planned(":check")


@pytest.mark.parametrize(("parts", "code"), [(4, "E0280"), (2, "E0292")])
def test_an_index_that_is_nearly_an_axis_is_warned_of_at_once_and_in_check(
    enter_: Entering, parts: int, code: str
) -> None:
    enter_("mesh gpus(tp = 2)")
    said = enter_(f"split model by ffn into tpp = {parts}")
    assert f"by ffn into {parts} parts, tpp, in time" in said and "E0280" in said and "did you mean `tp`?" in said
    assert "E0280" not in enter_("assign model to gpus"), "once is enough"
    said = enter_(":check")
    assert code in said and ("E0267" in said) is (code == "E0280"), "as the command says it"


def test_diff_is_against_the_last_simulation(planned: Entering) -> None:
    assert "E0806" in planned(":diff")
    planned("gpipe(stage, 4)")
    assert planned(":simulate") and not planned.failed
    planned(":undo")
    planned("one_f_one_b(stage, 4)")
    said = planned(":diff")
    assert "-gpipe(stage, 4)" in said and "+one_f_one_b(stage, 4)" in said and "simulated" in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (":undoo", "did you mean `:undo`?"),
        (":sho ops", "operators of gpt"),
        (":show opps", "did you mean `ops`?"),
        (":show", "`:show` takes dims|ops"),
        (":plan now", "`:plan` takes no argument"),
        (":undo x", "write `:undo 2`"),
        (":load megatorn", "did you mean `megatron`"),
        (":", "`:help` lists the commands"),
        (":help", ":save FILE"),
        (":help split", "split model by batch into dp, m = 4"),
        (":help E0203", "cannot split"),
        (":help selections", "balance(model, S)"),
        (":help splot", "did you mean `split`?"),
        (":plan", "param S = 2"),
        (":list", "param S = 2"),
    ],
)
def test_commands_leave_the_plan_as_it_was(planned: Entering, line: str, said: str) -> None:
    before = planned.text
    assert said in planned(line)
    assert planned.text == before


def test_quit_ends(enter_: Entering) -> None:
    enter_(":quit")
    assert enter_.ended and not enter_.failed


def test_every_mistake_of_a_command_has_a_golden(
    planned: Entering, tmp_path: Path, golden: Callable[[Path, str], None]
) -> None:
    (tmp_path / "p.ssp").touch()
    lines = {
        "E0801": ":undoo",
        "E0802": ":show opps",
        "E0803": ":undo 9",
        "E0804": f":save {tmp_path}/p.ssp",
        "E0805": f":save {tmp_path}/nowhere/p.ssp",
        "E0806": ":diff",
        "E0807": ":redo",
    }
    for code, line in lines.items():
        said = planned(line).replace(f"{tmp_path}/", "")
        assert said.startswith(f"error[{code}]")
        golden(Path(__file__).parent.parent / "errors" / f"{code}.err", said + "\n")


@pytest.mark.parametrize(
    ("line", "then"),
    [
        (":undoo", ["{0}"]),
        (":show opps", [":show {0}"]),
        (":show", [":show dims"]),
        (":undo x", ["{0}"]),
        (":undo 9", ["{0}"]),
        (":redo", ["{0}", ":redo"]),
        (":diff", ["{0}", "recompute model", "{1}"]),
        (":set S=", ["{0}"]),
        (":set Q=1", ["{0}"]),
        (":help splot", [":help {0}"]),
    ],
)
def test_a_help_that_is_followed_works(planned: Entering, line: str, then: list[str]) -> None:
    said = planned(line)
    assert planned.failed
    quoted = re.findall(r"`([^`]+)`", said.partition("help: ")[2])
    for entered in then:
        planned(entered.format(*quoted))
        assert not planned.failed, entered


def test_a_plan_without_params_gets_one(enter_: Entering) -> None:
    said = enter_(":set T=3")
    assert "which has none" in said and said.endswith("help: write `param T = 3`")
    assert enter_("param T = 3") == "param T = 3"


def test_a_file_that_exists_is_overwritten_as_the_help_says(planned: Entering, tmp_path: Path) -> None:
    (tmp_path / "p.ssp").touch()
    (again,) = re.findall(r"`(:[^`]+)`", planned(f":save {tmp_path}/p.ssp"))
    planned(again)
    assert not planned.failed
