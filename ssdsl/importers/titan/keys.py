"""The keys of torchtitan's configurations: what each says in a plan, or why it says nothing there.

The names are those of all versions: `torchtitan/config_manager.py`, `torchtitan/config/job_config.py` and
`torchtitan/config/configs.py` (github.com/pytorch/torchtitan, BSD-3-Clause), from 2024 to 2026.
"""

from collections.abc import Mapping

# The names that keys have had before, each with that of the last version with TOML.
ALIASES: Mapping[str, str] = {
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.sequence_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "training.fsdp_reshard_after_forward": "parallelism.fsdp_reshard_after_forward",
    "training.disable_loss_parallel": "parallelism.disable_loss_parallel",
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.pipeline_parallel_split_points": "parallelism.pipeline_parallel_split_points",
    "experimental.pipeline_parallel_microbatches": "parallelism.pipeline_parallel_microbatches",
    "experimental.pipeline_parallel_schedule_csv": "parallelism.pipeline_parallel_schedule_csv",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.context_parallel_rotate_method": "parallelism.context_parallel_rotate_method",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "experimental.enable_compiled_autograd": "parallelism.enable_compiled_autograd",
    "compile.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "activation_checkpoint.force_recompute_mm_shapes_by_fqns": (
        "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns"
    ),
}

# What a key fills of `Widths`: the lines of the plan that say these are what it becomes.
SAYS: Mapping[str, tuple[str, ...]] = {
    "parallelism.data_parallel_replicate_degree": ("shards", "data"),
    "parallelism.data_parallel_shard_degree": ("data", "state"),
    "parallelism.fsdp_reshard_after_forward": ("state",),
    "parallelism.tensor_parallel_degree": ("tensor", "sequence"),
    "parallelism.enable_sequence_parallel": ("sequence",),
    "parallelism.context_parallel_degree": ("context",),
    "parallelism.context_parallel_rotate_method": ("attention",),
    "parallelism.context_parallel_load_balancer": ("context",),
    "parallelism.pipeline_parallel_degree": ("stages",),
    "parallelism.pipeline_parallel_schedule": ("schedule",),
    "parallelism.pipeline_parallel_schedule_csv": ("schedule",),
    "parallelism.pipeline_parallel_split_points": ("before",),
    "parallelism.module_fqns_per_model_part": ("before",),
    "parallelism.pipeline_parallel_layers_per_stage": ("before",),
    "parallelism.pipeline_parallel_first_stage_less_layers": ("before",),
    "parallelism.pipeline_parallel_last_stage_less_layers": ("before",),
    "parallelism.pipeline_parallel_microbatches": ("micro",),
    "parallelism.pipeline_parallel_microbatch_size": ("micro",),
    "parallelism.num_pp_microbatches": ("micro",),
    "parallelism.expert_parallel_degree": ("experts",),
    "parallelism.expert_tensor_parallel_degree": ("experts", "expert_tensor"),
    "activation_checkpoint.mode": ("recompute",),
    "activation_checkpoint.selective_ac_option": ("recompute",),
    "training.enable_cpu_offload": ("to_host",),
}
OF_PIPELINE = tuple(key for key in SAYS if "pipeline" in key or "pp_microbatches" in key or "module_fqns" in key)
OF_SEQUENCE = tuple(key for key in SAYS if key.startswith("parallelism.context_parallel_"))

# What the model's part of the header says.
OF_MODEL = tuple(
    "model.name model.flavor training.seq_len training.local_batch_size training.global_batch_size "
    "training.num_tokens_per_microbatch_per_dp_rank training.num_tokens_per_train_step "
    "training.max_context_length".split()
)

# What asks for something that plans or programs do not have, unless its value is one that turns it off.
LACKING: Mapping[str, str] = {
    "parallelism.enable_async_tensor_parallel": "nothing yet: a product waits for its operands, and travels whole",
    "parallelism.disable_loss_parallel": "`tensor_parallel(model)` cuts the loss by vocab, too; in place of it write "
    "`split model by heads into tp` and `split model by ffn into tp`",
    "parallelism.enable_tp2ep": "experts are divided over devices of a layer by `split experts by experts into tp`",
    "parallelism.enable_fsdp_symm_mem": "kernels of communication are those of the process group's backend",
    "parallelism.context_parallel_ptrr_mask_key": "parts of the sequence are dealt zigzag, whatever the mask",
    "optimizer.early_step_in_backward": "the optimizer steps behind all of backward",
    "fault_tolerance.enable": "the devices of a run are fixed: `torchrun --max-restarts` starts it again",
    "debug.moe_force_load_balance": "tokens go to the experts that the router chooses",
    "debug.batch_invariant": "kernels are those that torch takes",
    "experimental.custom_import": "a module of yours is not read",
    "experimental.custom_args_module": "keys of a module of yours are not known here",
    "experimental.custom_model_path": "the model of a file of yours: give it as `--model FILE.py:function`",
    "job.custom_config_module": "keys of a module of yours are not known here",
    "model.use_flex_attn": "a mask of documents is the model's: `flex_attention` of a model of yours is captured",
    "override.imports": "modules of yours that replace others are not read",
    "training.enable_fp8_linear": "products in 8 bits: nothing yet",
    "training.enable_float8_linear": "products in 8 bits: nothing yet",
    "training.fp8_linear": "products in 8 bits: nothing yet",
    "float8.enable_float8_linear": "products in 8 bits: nothing yet",
    "model_spec.converters": "products in 8 bits, adapters: nothing yet",
    "activation_checkpoint.memory_budget": "what is kept is said by name: `recompute model[...]`",
    "checkpoint.enable_ft_dataloader_checkpoints": "",
}
EIGHT_BITS = ("float8.", "mx.", "quantize.", "training.float8", "training.precompute_float8", "training.enable_fsdp_f")

# What a plan has no word for, by the reason; a section stands for all of its keys.
SILENT: Mapping[str, str] = {
    "files and logs of its loop": "job.config_file job.dump_folder job.description job.print_args job.print_config "
    "job.save_config_file job.save_config_folder job.use_for_integration_test dump_folder model.print_after_conversion "
    "comm.trace_buf_size comm.save_traces_folder comm.save_traces_file_prefix debug.print_config "
    "debug.save_config_file debug.enable_structured_logging debug.spmd_typechecking global.dump_folder "
    "metrics.disable_color_printing metrics.disable_logging_from_checkpoint metrics.enable_color_printing "
    "metrics.enable_tensorboard metrics.enable_wandb metrics.log_freq metrics.rank_0_only metrics.save_for_all_ranks "
    "metrics.save_tb_folder metrics.log_dir metrics.job_description",
    "`ssdsl profile`, and `ssdsl simulate --trace`": "profiling.enable_memory_snapshot profiling.enable_profiling "
    "profiling.profile_every_x_iter profiling.profile_freq profiling.profiler_active profiling.profiler_warmup "
    "profiling.run_profiler profiling.save_memory_snapshot_folder profiling.save_traces_folder "
    "profiling.profiler_repeat profiling.with_stack",
    "`ssdsl run --save`, `--save-every`, `--resume`": "checkpoint.async_mode checkpoint.create_seed_checkpoint "
    "checkpoint.enable checkpoint.enable_checkpoint checkpoint.enable_first_step_checkpoint "
    "checkpoint.enable_ft_dataloader_checkpoints checkpoint.exclude_from_loading checkpoint.export_dtype "
    "checkpoint.folder checkpoint.checkpoint_folder checkpoint.initial_load_in_hf "
    "checkpoint.initial_load_in_hf_quantized checkpoint.initial_load_model_only "
    "checkpoint.initial_load_model_weights_only checkpoint.initial_load_path checkpoint.interval "
    "checkpoint.interval_type checkpoint.keep_latest_k checkpoint.last_save_in_hf "
    "checkpoint.last_save_in_safetensors_format checkpoint.last_save_model_only "
    "checkpoint.last_save_model_weights_only checkpoint.load_only checkpoint.load_step checkpoint.model_weights_only "
    "training.checkpoint_folder training.checkpoint_interval training.checkpoint_interval_type",
    "the words of the data are its loader's": "tokenizer model.tokenizer_path model.hf_assets_path hf_assets_path "
    "hf_transformers.model",
    "`ssdsl run --data FILE.py:function`, `engine.loader`": "training.dataset training.dataset_path "
    "training.dataloader dataloader training.data.name training.data.paths training.img_size data encoder "
    "training.classifer_free_guidance_prob training.classifier_free_guidance_prob training.guidance "
    "training.test_mode",
    "`ssdsl run --eval-every`, `engine.evaluate`": "validation eval inference",
    "`ssdsl run --lr`; a schedule is that of a loop of yours": "lr_scheduler training.warmup_steps training.warmup_pct "
    "scheduler",
    "`ssdsl run --lr`; `engine.optimizer(torch.optim.AdamW, ...)` takes the rest": "optimizer.name optimizer.lr "
    "optimizer.beta1 optimizer.beta2 optimizer.eps optimizer.weight_decay optimizer.implementation optimizer.fused "
    "optimizer.default_adamw optimizer",
    "the model's own loss": "loss",
    "`ssdsl run --steps`": "training.steps",
    "`ssdsl run --clip`": "training.max_norm",
    "`ssdsl run --seed`": "training.seed debug.seed",
    "every plan draws what one device draws, and torch says what it computes": "training.deterministic "
    "debug.deterministic debug.deterministic_warn_only activation_checkpoint.preserve_rng_state",
    "`ssdsl run --precision bf16`": "training.mixed_precision_param training.mixed_precision_reduce training.dtype",
    "`ssdsl run --kernels compiled`": "compile.enable compile.components compile.backend training.compile_rmsnorm "
    "parallelism.enable_compiled_autograd compile.graph_passes compile.joint_passes compile.passes "
    "compile.model_backend_override",
    "`ssdsl run --timeout`": "comm.init_timeout_seconds comm.train_timeout_seconds comm.timeout_seconds",
    "`ssdsl check` needs no devices": "comm.mode",
    "`ssdsl show PLAN memory`": "memory_estimation estimate",
    "Python's own memory": "training.gc_freq training.gc_debug training.gc_schedule",
    "programs capture no CUDA graphs": "training.disable_cuda_graphs",
    "one way to write what travels, of several": "parallelism.spmd_backend experimental.torch_spmd "
    "experimental.comms_bucket_reorder_strategy experimental.autop_force_bf16 parallelism.expert_parallel_comm_backend",
    "of the overlapped pairs: what one task sends travels while another computes": (
        "parallelism.pipeline_parallel_expert_parallel_overlap"
    ),
    "finds mistakes: `ssdsl run --find-nan`": "debug.detect_anomaly activation_checkpoint.debug "
    "activation_checkpoint.determinism_check",
    "when a second forward ends": "activation_checkpoint.early_stop",
    "of a budget, which is not asked for": "activation_checkpoint.visualize_memory_budget_pareto",
    "of fault tolerance, which is not asked for": "fault_tolerance",
    "weights are rows of one flat tensor": "training.data_parallel_type",
    "the attention that the model names; `--kernels` says which kernels run": "model.attn_backend "
    "model.tp_gemm_backend model.moe_comm_backend model.non_blocking_capacity_factor",
    "a plan splits the loss by vocab where it splits the scores": "training.enable_loss_parallel",
}
OFF: tuple[object, ...] = (False, None, "", "none", 0, [], {})  # the values that ask for nothing
SCHEDULES: Mapping[str, str] = {
    "1f1b": "one_f_one_b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
    "interleaved_1f1b": "interleaved",
    "flexible_interleaved_1f1b": "interleaved",
    "flexibleinterleaved1f1b": "interleaved",
    "zbvzerobubble": "zb_v",
    "dualpipev": "dual_pipe_v",
    "loopedbfs": "",
    "interleavedzerobubble": "",
}
SINGLE = ("1f1b", "gpipe")  # one stage on a device
V_SHAPED = ("zbvzerobubble", "dualpipev")


def reason(key: str) -> str | None:
    """Why a key has nothing to say in a plan; None if that is not known."""
    for why, keys in SILENT.items():
        for known in keys.split():
            if key == known or (("." not in known or known in TABLES) and key.startswith(f"{known}.")):
                return why
    return None


TABLES = ("training.dataloader",)


def known_keys() -> list[str]:
    """All keys that are known here, by all of their names."""
    single = [key for keys in SILENT.values() for key in keys.split() if "." in key]
    return [*SAYS, *ALIASES, *OF_MODEL, *LACKING, *single]
