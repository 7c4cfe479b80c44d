"""Command lines, scripts and configs of Megatron as plans: nothing of them is lost, and what they say is right."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import ssdsl
from ssdsl.importers import megatron
from ssdsl.importers.foreign import Foreign
from ssdsl.importers.imported import Imported
from ssdsl.importers.megatron.arguments import Arguments, settings_of
from ssdsl.importers.megatron.flags import FLAGS, REFUSED, RULED, SILENT
from ssdsl.importers.megatron.layout import problem_of, stages_of
from ssdsl.importers.megatron.model import vocabulary
from ssdsl.importers.megatron.shell.follow import ShellWord, run
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source

ERRORS = Path(__file__).parent.parent / "errors"
TINY = (
    "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 1 --global-batch-size 8 --padded-vocab-size 256 --hidden-dropout 0 --attention-dropout 0"
)
ROTARY = (
    f"{TINY} --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear "
    "--untie-embeddings-and-output-weights --ffn-hidden-size 64"
)
EXPERTS = f"{ROTARY} --num-experts 4 --moe-router-topk 2"


def read(text: str, path: Path | None = None) -> Imported:
    return megatron.read(Foreign(text, text, path))


def launch(flags: str, devices: int = 8) -> str:
    return f"torchrun --nproc_per_node {devices} pretrain_gpt.py {flags}"


def script(folder: Path, text: str, name: str = "run.sh") -> Imported:
    path = folder / name
    path.write_text(text)
    source = Foreign(str(path), text, path)
    assert megatron.recognises(source)
    return megatron.read(source)


# -- flags -------------------------------------------------------------------------------------------------------------


def test_each_flag_has_one_place() -> None:
    words = [
        word.partition("=")[0] for groups in (RULED, SILENT, REFUSED) for _, text in groups for word in text.split()
    ]
    assert [name for name, times in Counter(words).items() if times > 1] == []
    assert {flag.values for flag in FLAGS.values()} <= {"", "=", "=+", "=*", "=?", "=3"}
    assert len(FLAGS) > 1100


VALUES = {
    "": (),
    "=": ("2",),
    "=?": ("2",),
    "=3": ("2", "2", "8"),
    "=+": ("2",),
    "=*": ("a", "b"),
}
WORDS = {
    "pipeline-model-parallel-layout": "Et|t|t|tL",
    "step-batch-size-schedule": "0:8",
    "moe-layer-freq": "[1]*4",
    "global-batch-size": "64",
    "num-layers": "4",
    "encoder-num-layers": "4",
    "deepspeed_config": "ds.json",
}
ALONE = {
    "num-layers-per-virtual-pipeline-stage",
    "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers",
}


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost(seed: int) -> None:
    draw = random.Random(seed)
    names = draw.sample(sorted({*FLAGS} - ALONE), 60)
    given = [(f"--{name}", *((WORDS[name],) if name in WORDS else VALUES[FLAGS[name].values])) for name in names]
    given += [("--of-nobody", "3")]
    # widths that fit, whatever else is said
    given += [("--num-experts", "8"), ("--micro-batch-size", "1"), ("--global-batch-size", "64"), ("--num-layers", "4")]
    found = read(launch(" ".join(f"'{word}'" for words in given for word in words)))
    written = Counter(item.written.split()[0].partition("=")[0] for item in found.items)
    wanted = Counter(words[0] for words in given) + Counter(["--nproc_per_node"])
    assert written == wanted
    assert all(item.becomes for item in found.items)


def test_the_nearest_known_flag_is_named() -> None:
    (item,) = [i for i in read(launch(f"{TINY} --tensor-model-paralel-size 2")).refused if "paralel" in i.written]
    assert "`tensor-model-parallel-size`" in item.becomes


def test_the_last_of_two_counts() -> None:
    found = read(launch(f"{TINY} --tensor-model-parallel-size 2 --tensor-model-parallel-size 4"))
    assert "param T = 4" in found.text
    assert [i.becomes for i in found.refused] == ["overridden by `--tensor-model-parallel-size 4`"]


IGNORED = {
    "--sequence-parallel": "ignored without a word",
    "--num-query-groups 2": "ignored without a word",
    "--cp-comm-type a2a": "ignored",
    "--expert-model-parallel-size 2": "ignored",
    "--use-distributed-optimizer --context-parallel-size 1": "ignored: there is one replica",
    "--overlap-param-gather": "Megatron stops",
    "--recompute-num-layers 2": "ignored",
    "--num-virtual-stages-per-pipeline-rank 2": "there is no pipeline",
    "--rotary-base 500000": "positions are not rotary",
    "--num-distributed-optimizer-instances 2": "ignored",
    "--moe-aux-loss-coeff 0.01": "there are no experts",
}


@pytest.mark.parametrize("flags", IGNORED)
def test_what_megatron_ignores_is_said(flags: str) -> None:
    found = read(launch(f"{TINY} {flags}", 1))
    assert [IGNORED[flags] in i.becomes for i in found.refused] == [True], found.refused


# -- layouts -----------------------------------------------------------------------------------------------------------

# Made by `PipelineParallelLayerLayout.parse_str_to_list` of megatron-core 0.16.1; 20,000 others were equal, too.
LAYOUTS = (
    ("Et*3|(tt|)*29,m|L", "|".join(["Ettt", *["tt"] * 29, "m", "L"])),
    ("E|t*2|(t|)*3L", "E|tt|t|t|t|L"),
    ("Ett|(tt|)*2tL", "Ett|tt|tt|tL"),
    ("E,t|(t*2|)*2,L", "Et|tt|tt|L"),
    ("Et|t||tL", "Et|t||tL"),
    ("(t|)*2", "t|t|"),
    ("Et*4|m*1|L", "Etttt|m|L"),
    ("E|(t|t|)*2|L", "E|t|t|t|t||L"),
    ("Et*0|tL", "E|tL"),
    ("mE*2|*8(|EE)*3", "mEE|||||||||EE|EE|EE"),
    ("L(m|,E)*0", "L"),
    ("(m)*0|Em", "|Em"),
    ("Lt*7E*5", "LtttttttEEEEE"),
    ("(E)*5t*4", "EEEEEtttt"),
    ("E(m)*4*2L(tt)*0", "EmmmmmL"),
    ("(mttt)*4L(t*3|)*2t", "mtttmtttmtttmtttLttt|ttt|t"),
    ("t|*0Lm*2", "tLmm"),
    ("(tE)*1", "tE"),
    ("(Et,)*1t", "Ett"),
    ("t(m)*1|LL", "tm|LL"),
    ("|*11t*0", "|||||||||||"),
    ("(t*3|)*2E(t*3|)*2", "ttt|ttt|Ettt|ttt|"),
    ("(E)*5,E", "EEEEEE"),
    ("(,t)*5", "ttttt"),
    ("(tt,)*4E*1", "ttttttttE"),
)


@pytest.mark.parametrize(("text", "stages"), LAYOUTS)
def test_a_layout_is_that_of_megatron_core(text: str, stages: str) -> None:
    assert stages_of(text) == tuple(stages.split("|"))


@pytest.mark.parametrize("text", ["Etx|L", "(Et", "t*|L", "((t|)*2)*2"])
def test_no_layout(text: str) -> None:
    assert stages_of(text) is None


def test_stages_fit_the_model() -> None:
    stages = stages_of("Et*2|t||tL") or ()
    assert problem_of(stages, 4, 4) == ""
    assert "5" in problem_of(stages, 5, 4)
    assert "3 devices" in problem_of(stages, 4, 3)
    assert "embedding" in problem_of(("t", "tL"), 2, 2)
    assert "loss" in problem_of(("Et", "t"), 2, 2)
    assert "behind" in problem_of(("Em", "tL"), 1, 2)


# -- scripts -----------------------------------------------------------------------------------------------------------

SCRIPTS = {
    'A=4\nB=$((A * 2))\nrun --x $A "$B" ${C:-9}': "run --x 4 8 9",
    'X=(--a 1 # note\n  --b "2 3")\nX+=(--c)\nrun "${X[@]}"': "run --a 1 --b 2 3 --c",
    "X='--a 1'\nX+=' --b'\nrun $X \\\n  --c": "run --a 1 --b --c",
    'run "${X[@]}"': "run $X",
    "if [ 3 -gt 2 ]; then A=1; else A=2; fi\nrun $A": "run 1",
    "A=b\nif [[ $A == a ]]; then X=1\nelif [[ $A == b* ]]; then X=2\nfi\nrun $X": "run 2",
    "case big in small) X=1;; b*|c) X=2;; *) X=3;; esac\nrun $X": "run 2",
    "A=2\nsbatch <<EOF\n#!/bin/bash\nsrun run --n $A | tee x\nEOF": "srun run --n 2",
    "f() { run --n $1; }\nf 7": "run --n 7",
    'CMD="run --a 1"\nCMD="$CMD --b"\necho $CMD\neval $CMD': "run --a 1 --b",
    'srun sh -c "run --a 1"': "srun run --a 1",
    "A=model.7b.sh\nrun ${A%.sh} ${A##*.} ${A/7b/8b} ${#A}": "run model.7b sh model.8b.sh 11",
    "for n in 1 2; do run --n $n; break; done": "run --n 1",
    'IFS=, read -r A B <<< "4,2"\nrun $A $B': "run 4 2",
    "A=$(echo 6)\nB=`expr 2 + 3`\nrun $A $B": "run 6 5",
    "declare -A M=([a]=1 [b]=2)\nrun ${M[b]}": "run 2",
    "[ -z $NOBODY ] && A=1\nrun $A": "run 1",
    "if [ $# -lt 2 ]; then echo usage; exit 1; fi\nrun --a": "run --a",
}


@pytest.mark.parametrize("text", SCRIPTS)
def test_a_script_is_followed(text: str) -> None:
    found = run(text, None)
    assert " ".join(word.text for word in found.commands[-1]) == SCRIPTS[text]


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "made"
    run(f"touch {mark}\nA=$(touch {mark})\nif touch {mark}; then B=1; fi\neval 'touch {mark}'\nrun $A", None)
    assert not mark.exists()


@pytest.mark.parametrize(
    "text", ["f() { f; f; }\nf", "while true; do run; done", 'A="$(', "if [", "X=(", "cat <<EOF", "))", ";;"]
)
def test_a_script_that_is_odd_ends(text: str) -> None:
    run(text, None)


def test_lines_are_those_of_the_flags(tmp_path: Path) -> None:
    text = (
        f"#!/bin/bash\nARGS=(\n  {TINY}\n  --tensor-model-parallel-size 2\n)\ntorchrun pretrain_gpt.py ${{ARGS[@]}}\n"
    )
    lines = {item.written: item.line for item in script(tmp_path, text).items}
    assert lines["--num-layers 4"] == 3
    assert lines["--tensor-model-parallel-size 2"] == 4


def test_lines_of_a_command_in_a_text(tmp_path: Path) -> None:
    text = (
        f"#!/bin/bash\nFLAGS='{TINY} \\\n  --bf16'\nsbatch <<EOF\nsrun bash -c \"python pretrain_gpt.py $FLAGS\"\nEOF\n"
    )
    lines = {item.written: item.line for item in script(tmp_path, text).items}
    assert (lines["--num-layers 4"], lines["--bf16"]) == (2, 3)


def test_what_the_environment_decides_is_said(tmp_path: Path) -> None:
    text = (
        f'#!/bin/bash\nARGS=\'{TINY}\'\nif [ -n "$WANDB" ]; then\n  ARGS="$ARGS --wandb-project x"\nfi\n'
        ". ./more.sh\ntorchrun --nproc_per_node $GPUS pretrain_gpt.py $ARGS $EXTRA --tensor-model-parallel-size $TP\n"
    )
    refused = {item.written: item for item in script(tmp_path, text).refused}
    assert "`WANDB` is of the environment" in refused['if [ -n "$WANDB" ]'].becomes
    assert refused['if [ -n "$WANDB" ]'].line == 3
    assert "no such file" in refused["source ./more.sh"].becomes
    assert "does not have" in refused["$EXTRA"].becomes
    assert "left out" in refused["--tensor-model-parallel-size $TP"].becomes


def test_a_file_beside_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "conf.sh").write_text("TP=4\n")
    text = f"source $(dirname $0)/conf.sh\n{launch(f'{TINY} --tensor-model-parallel-size $TP')}\n"
    assert "param T = 4" in script(tmp_path, text).text


def test_deepspeed_with_a_config_that_the_script_writes(tmp_path: Path) -> None:
    text = f"""\
#!/bin/bash
ZERO=2
CONFIG=ds_$ZERO.json
cat <<EOT > $CONFIG
{{
  "train_batch_size": 8, "zero_optimization": {{"stage": $ZERO, "offload_optimizer": {{"device": "cpu"}}}},
  "bf16": {{"enabled": true}}, "curriculum_learning": {{"enabled": true}}
}}
EOT
deepspeed --num_gpus 4 pretrain_gpt.py {TINY} --deepspeed --deepspeed_config $CONFIG --zero-stage $ZERO
"""
    found = script(tmp_path, text)
    assert found.kind == "a script of Megatron-DeepSpeed"
    assert "split model.grads by row into dp" in found.text and "assign model.optimizer to host" in found.text
    assert {"zero_optimization.stage: 2", "--zero-stage 2"} <= {item.written for item in found.said}
    assert "curriculum_learning.enabled: true" in {item.written for item in found.refused}


def test_sbatch_says_the_devices(tmp_path: Path) -> None:
    head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n"
    found = script(tmp_path, f"{head}srun python pretrain_gpt.py {TINY} --global-batch-size 16\n")
    assert "param D = 16" in found.text
    assert "#SBATCH --nodes=2" in {item.written for item in found.said}


def test_devices_that_widths_do_not_divide() -> None:
    found = read(launch(f"{TINY} --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4"))
    assert "no multiple of tensor x pipeline x context = 16" in found.refused[0].becomes
    assert "param D = 1" in found.text


def test_a_config_of_a_test_of_megatron(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    text = """\
ENV_VARS:
  NCCL_ALGO: Ring
MODEL_ARGS:
  --num-layers: 4
  --hidden-size: 32
  --num-attention-heads: 4
  --micro-batch-size: 1
  --global-batch-size: 8
  --bf16: true
  --sequence-parallel: false
  --tensor-model-parallel-size: 2
  --data-path: ${DATA}/a ${DATA}/b
"""
    found = script(tmp_path, text, "model_config.yaml")
    assert len(found.items) == 10
    assert {i.written: i.line for i in found.said}["--tensor-model-parallel-size: 2"] == 11
    assert "false" in next(i.becomes for i in found.silent if "sequence" in i.written)


def test_overrides_of_megatron_bridge() -> None:
    text = (
        "torchrun --nproc-per-node=8 scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config -tp 2 "
        "model.pipeline_model_parallel_size=2 model.context_parallel_size=2 model.sequence_parallel=True "
        "train.global_batch_size=16 train.micro_batch_size=1 ddp.use_distributed_optimizer=true "
        "optimizer.lr=0.1 model.share_embeddings_and_output_weights=false model.of_nobody=3 logger.log_interval=1"
    )
    assert megatron.recognises(Foreign(text, text))
    found = read(text)
    assert found.kind == "a command line of Megatron-Bridge" and found.model is None
    assert "mesh gpus(pp = S, cp = C, tp = T)" in found.text
    assert len(found.items) == 13
    assert {"--recipe llama3_8b_pretrain_config", "model.of_nobody=3"} <= {i.written for i in found.refused}


# -- models ------------------------------------------------------------------------------------------------------------

LLAMA = "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear"
MODELS = {
    "": "gpt:layers=4,hidden=32,heads=4,seq=32,batch=8,vocab=256,activation_function=gelu",
    "--untie-embeddings-and-output-weights --ffn-hidden-size 64": "gpt:layers=4,hidden=32,heads=4,seq=32,batch=8,"
    "vocab=256,n_inner=64,activation_function=gelu,tie_word_embeddings=false",
    "--squared-relu": "gpt:layers=4,hidden=32,heads=4,seq=32,batch=8,vocab=256,activation_function=relu2",
    "--disable-bias-linear": "hf:opt,",
    LLAMA: "llama:layers=4,hidden=32,heads=4,keys=4,ffn=64,seq=32,batch=8,vocab=256,theta=10000,tie_word_embeddings=",
    f"{LLAMA} --add-qkv-bias": "hf:qwen2,",
    f"{LLAMA} --qk-layernorm --kv-channels 16": "hf:qwen3,",
    f"{LLAMA} --num-experts 4": "mixtral:",
    f"{LLAMA} --num-experts 4 --qk-layernorm": "hf:qwen3_moe,",
    f"{LLAMA} --num-experts 4 --moe-shared-expert-intermediate-size 64 --moe-shared-expert-gate": "hf:qwen2_moe,",
    f"{LLAMA} --multi-latent-attention --num-experts 4 --moe-router-score-function sigmoid": "hf:deepseek_v3,",
    "--position-embedding-type rope": "hf:starcoder2,",
    "--position-embedding-type rope --rotary-percent 0.25": "hf:gpt_neox,",
    "--position-embedding-type rope --squared-relu --rotary-percent 0.5 --apply-layernorm-1p": "hf:nemotron,",
    "--num-experts 4": "moe_gpt:",
}


@pytest.mark.parametrize("flags", MODELS)
def test_the_model_that_flags_describe(flags: str) -> None:
    found = read(launch(f"{TINY} {flags}", 1))
    assert found.model is not None and found.model.startswith(MODELS[flags])
    assert f"# for: --model {found.model}\n" in found.text


@pytest.mark.parametrize(
    ("name", "flags", "kind"),
    [
        ("pretrain_bert.py", "", "hf:megatron-bert,"),
        (
            "pretrain_t5.py",
            "--encoder-num-layers 4 --decoder-num-layers 2",
            "hf:mbart,encoder_layers=4,decoder_layers=2",
        ),
        ("pretrain_vision_classify.py", "--img-h 32 --img-w 32 --patch-dim 8", "vit:"),
    ],
)
def test_the_model_that_a_script_trains(name: str, flags: str, kind: str) -> None:
    found = read(f"torchrun --nproc_per_node 1 {name} {TINY} {flags}")
    assert found.model is not None and found.model.startswith(kind)


def test_a_model_that_is_none_here() -> None:
    flags = f"{TINY} --hybrid-layer-pattern M-M- --tensor-model-parallel-size 2"
    found = read(f"torchrun --nproc_per_node 2 pretrain_mamba.py {flags}")
    assert found.model is None and "tensor_parallel(model)" in found.text
    assert all("Mamba" in i.becomes for i in found.refused)


def test_what_a_model_does_not_have_is_refused() -> None:
    flags = f"{TINY} --group-query-attention --num-query-groups 2"
    found = read(launch(f"{flags} --position-embedding-type learned_absolute", 1))
    assert found.model is not None and found.model.startswith("hf:starcoder2,")
    (item,) = found.refused
    assert item.becomes == "learned positions: `hf:starcoder2` has rotary positions"
    assert (
        "# Megatron would have learned positions, `hf:starcoder2` has rotary positions." in read(launch(flags, 1)).text
    )


VOCABULARIES = {
    "--tokenizer-type GPT2BPETokenizer": 50432,  # 50257, to a multiple of 128 x 2
    "--tokenizer-type NullTokenizer --vocab-size 1000": 1024,
    "--vocab-size 1000 --make-vocab-size-divisible-by 8": 1008,
    "--vocab-size 1000 --no-pad-vocab-size": 1000,
    "--padded-vocab-size 77": 77,
    "--tokenizer-type HuggingFaceTokenizer": None,
}


@pytest.mark.parametrize("flags", VOCABULARIES)
def test_a_vocabulary_is_padded_as_there(flags: str) -> None:
    settings, _ = settings_of([ShellWord(word, 1) for word in flags.split()])
    assert vocabulary(Arguments(tuple(settings), Foreign("", "")), "", 2) == VOCABULARIES[flags]


def test_the_loss_of_a_router_has_no_pipeline() -> None:
    flags = f"{EXPERTS} --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.01"
    alone, cut = read(launch(flags, 1)), read(launch(f"{flags} --pipeline-model-parallel-size 2", 2))
    assert "balance=0.01" in (alone.model or "") and "balance=0," in f"{cut.model},"
    assert ["E0403" in item.becomes for item in cut.refused] == [True, True]


# -- plans -------------------------------------------------------------------------------------------------------------

PLANS = {
    f"{ROTARY} --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 "
    "--num-virtual-stages-per-pipeline-rank 2 --use-distributed-optimizer --recompute-granularity selective": (
        "interleaved(stage, M, V)",
        "sequence_parallel(model)",
        "split model.optimizer by row into dp",
        "recompute model.scaled_dot_product_attention",
    ),
    f"{ROTARY} --context-parallel-size 2 --pipeline-model-parallel-size 4 --recompute-granularity full "
    "--recompute-method block --recompute-num-layers 1 --pipeline-model-parallel-layout 'E|tt||ttL'": (
        "let first = [0, 2, 2]",
        'recompute model["layers.{0,2}"]',
        "split model.scaled_dot_product_attention by seq.keys into cp parts zigzag(C)",
    ),
    f"{TINY} --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et|tt|t|L --use-tp-pp-dp-mapping": (
        'let layers = each("h.*") + [model["ln_f"]]',
        "let first = [1, 3, 4]",
        "mesh gpus(dp = D, pp = S)",
    ),
    f"{EXPERTS} --expert-model-parallel-size 4 --expert-tensor-parallel-size 1 --tensor-model-parallel-size 2 "
    "--use-distributed-optimizer --num-distributed-optimizer-instances 2": (
        "split experts by experts into tp",
        "split model.optimizer by row into ep",
    ),
    f"{TINY} --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --recompute-granularity full "
    "--recompute-method uniform --recompute-num-layers 1 --cpu-offloading-num-layers 0": (
        "split model.weights by row into dp",
        'recompute model["h.*"]',
    ),
}


@pytest.mark.parametrize("flags", PLANS)
def test_a_plan_is_right(flags: str, tmp_path: Path) -> None:
    found = read(launch(flags))
    for line in PLANS[flags]:
        assert line in found.text
    path = tmp_path / "plan.ssp"
    path.write_text(found.text)
    assert found.model is not None
    assert ssdsl.compile_plan(str(path), found.model).plan.devices == 8
    source = Source("plan.ssp", found.text)
    assert format_script(parse(source), source) == found.text


# -- mistakes ----------------------------------------------------------------------------------------------------------

MISTAKES = {
    "E0702": launch("--num-layers many"),
    "E0703": launch("--num-layers --hidden-size 64"),
    "E0704": launch(f"{TINY} --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*3|tt|L"),
    "E0705": launch(f"{TINY} --global-batch-size 12"),
}


@pytest.mark.parametrize("code", MISTAKES)
def test_what_is_wrong_is_said(code: str, golden: Callable[[Path, str], None]) -> None:
    with pytest.raises(PlanError) as raised:
        read(MISTAKES[code])
    golden(ERRORS / f"{code}.err", "\n".join(render(one) for one in raised.value.diagnostics) + "\n")


def test_what_is_wrong_in_a_file_is_said(tmp_path: Path, golden: Callable[[Path, str], None]) -> None:
    texts = {
        "E0701": "echo --num-layers 4\n",
        "E0706": f"deepspeed x.py {TINY} --deepspeed --deepspeed_config ds.json\n",
    }
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8')
    for code, text in texts.items():
        (tmp_path / "run.sh").write_text(text)
        with pytest.raises(PlanError) as raised:
            megatron.read(Foreign("run.sh", text, tmp_path / "run.sh"))
        golden(ERRORS / f"{code}.err", "\n".join(render(one) for one in raised.value.diagnostics) + "\n")


@pytest.mark.parametrize(
    "text",
    [
        "hf:llama",
        "1F0,1B0\n",
        "[parallelism]\ntensor_parallel_degree = 2\n",
        '{"traceEvents": []}',
        "mesh gpus(dp = 2)\n",
        "",
    ],
)
def test_other_sources_are_not_recognised(text: str) -> None:
    assert not megatron.recognises(Foreign(text, text))
