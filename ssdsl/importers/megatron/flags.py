"""The flags of Megatron-LM, of its scripts and of Megatron-DeepSpeed: the values of each, and what becomes of it.

Source: the parsers of Megatron-LM at d98e8a6 (August 2026; its generated flags included) and of Megatron-DeepSpeed at
4efb479 (July 2025); flags of older versions that their scripts still have. Behind a name `=` is one value, `=+` one or
more, `=*` any number, `=?` one or none, `=3` three, and nothing a switch.
"""

from enum import StrEnum

from ssdsl.record import Record


class ItemList(StrEnum):
    """The list in which a flag stands."""

    SAID = "said"
    SILENT = "silent"
    REFUSED = "refused"


class Flag(Record):
    """A flag without its dashes. `values` is as above; `place` and `reason` hold where no rule says another, which
    rules may for flags that are `is_ruled`."""

    name: str
    values: str
    place: ItemList
    reason: str
    is_ruled: bool = False


# Read by model.py and parallel.py; the reasons are for those that say nothing in the combination at hand.
RULED = (
    (
        "no part of the model here",
        """
        activation-func-clamp-value= add-qkv-bias apply-layernorm-1p apply-residual-connection-post-layernorm
        attention-dropout= bert-no-binary-head decoder-num-layers= decoder-seq-length= disable-bias-linear
        disable-pad-vocab-size enable-gpt-oss encoder-num-layers= encoder-seq-length= expert-interval=
        ffn-hidden-size= glu-linear-offset= group-query-attention hidden-dropout= hidden-size=
        hybrid-layer-pattern= hybrid-override-pattern= img-h= img-w= is-hybrid-model kv-channels= kv-lora-rank=
        language-model-type= layernorm-epsilon= make-vocab-size-divisible-by= mask-prob=
        max-position-embeddings= mlp-type= model-provider= moe-aux-loss-coeff=+ moe-expert-capacity-factor=
        moe-ffn-hidden-size= moe-layer-freq= moe-loss-coeff= moe-router-enable-expert-bias
        moe-router-group-topk= moe-router-load-balancing-type=+ moe-router-num-groups= moe-router-pre-softmax
        moe-router-score-function= moe-router-topk-scaling-factor= moe-router-topk= moe-shared-expert-gate
        moe-shared-expert-intermediate-size= moe-train-capacity-factor= moe-use-legacy-grouped-gemm
        moe-z-loss-coeff= mtp-num-layers= multi-latent-attention no-pad-vocab-size no-position-embedding
        norm-epsilon= normalization= num-attention-heads= num-channels= num-classes= num-experts=+
        num-key-value-heads= num-layers= num-query-groups= openai-gelu padded-vocab-size= patch-dim=
        position-embedding-type= q-lora-rank= qk-head-dim= qk-layernorm qk-pos-emb-head-dim= quick-geglu
        rope-scaling-factor= rope-type= rotary-base= rotary-percent= rotary-position-embeddings-theta=
        rotary-scaling-factor= seq-length= softmax-type= spec=* squared-relu swiglu tokenizer-type= topk=
        untie-embeddings-and-output-weights use-checkpoint-args use-rope-scaling use-rotary-position-embeddings
        v-head-dim= vision-backbone-type= vision-model-type= vocab-extra-ids= vocab-size= window-attn-skip-freq=
        window-size=
        """,
    ),
    (
        "nothing of this plan depends on it",
        """
        DDP-impl= account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split
        activations-checkpoint-method= activations-checkpoint-num-layers= batch-size= checkpoint-activations
        checkpoint-num-layers= context-parallel-size= cp-comm-type=+ cpu-offloading-num-layers= cpu-optimizer
        custom-fsdp data-parallel-sharding-strategy= decoder-first-pipeline-num-layers=
        decoder-last-pipeline-num-layers= deepspeed deepspeed-activation-checkpointing deepspeed_config=
        delay-wgrad-compute ds-sequence-parallel-size= enable-expert-tensor-parallelism
        enable-zbh1-exact-semantics enable-zbh1-pipeline expert-model-parallel-size=
        expert-tensor-parallel-size= force-ds-sequence-parallel global-batch-size=
        hierarchical-context-parallel-sizes=+ micro-batch-size=
        microbatch-group-size-per-virtual-pipeline-stage= model-parallel-size= moe-expert-parallel-size=
        moe-layer-recompute mtp-standalone no-overlap-p2p-communication no-pipeline-parallel
        num-distributed-optimizer-instances= num-layers-per-virtual-pipeline-stage=
        num-virtual-stages-per-pipeline-rank= optimizer-cpu-offload optimizer-offload-fraction=
        outer-dp-sharding-strategy= overlap-grad-reduce overlap-p2p-communication overlap-param-gather
        overlap-param-gather-with-optimizer-step pipeline-model-parallel-layout= pipeline-model-parallel-size=
        rampup-batch-size=3 recompute-activations recompute-granularity= recompute-method= recompute-modules=+
        recompute-num-layers= remote-device= sequence-parallel standalone-embedding-stage
        step-batch-size-schedule= tensor-model-parallel-size= torch-fsdp2-no-reshard-after-forward
        tp-comm-overlap use-custom-fsdp use-distributed-optimizer use-megatron-fsdp use-torch-fsdp2
        use-tp-pp-dp-mapping world-size= zero-stage=
        """,
    ),
)

SILENT = (
    (
        "`ssdsl run --lr`; a schedule is a function of your own loop",
        """
        lr=
        """,
    ),
    (
        "`ssdsl run --optimizer`, `engine.optimizer` in your own loop",
        """
        optimizer=
        """,
    ),
    (
        "`ssdsl run --clip`",
        """
        clip-grad=
        """,
    ),
    (
        "`ssdsl run --seed`",
        """
        seed=
        """,
    ),
    (
        "the optimizer and its schedule, in your own loop: `engine.optimizer`",
        """
        adam-beta1= adam-beta2= adam-eps= apply-wd-to-qk-layernorm cpu_torch_adam decoupled-lr=
        decoupled-min-lr= ds_fused_adam end-weight-decay= exp-avg-dtype= exp-avg-sq-dtype= head-lr-mult=
        hysteresis= initial-loss-scale= lion-beta1= lion-beta2= loss-scale-window= loss-scale=
        lr-data-range-end= lr-data-range-start= lr-decay-iters= lr-decay-samples= lr-decay-style=
        lr-decay-tokens= lr-warmup-fraction= lr-warmup-init= lr-warmup-iters= lr-warmup-samples=
        lr-warmup-tokens= lr-wsd-decay-iters= lr-wsd-decay-samples= lr-wsd-decay-style= main-grads-dtype=
        main-params-dtype= min-loss-scale= min-lr= muon-coefficient-type= muon-extra-scale-factor=
        muon-fp32-matmul-prec= muon-momentum= muon-nesterov muon-no-split-qkv muon-num-ns-steps=
        muon-scalar-optimizer= muon-scale-mode= muon-tp-mode= muon-use-syrk no-weight-decay-cond-type=
        override-opt-param-scheduler override-opt_param-scheduler sgd-momentum= start-weight-decay=
        use-checkpoint-opt-param-scheduler use-checkpoint-opt_param-scheduler use-precision-aware-optimizer
        use-torch-optimizer-for-cpu-offload warmup= weight-decay-incr-style= weight-decay=
        """,
    ),
    (
        "`ssdsl run --steps`",
        """
        train-iters=
        """,
    ),
    (
        "`ssdsl run --eval-every`",
        """
        eval-interval=
        """,
    ),
    (
        "a matter of the loop: `ssdsl run --steps`, `--eval-every`, or your own",
        """
        epochs= eval-global-batch-size= eval-iters= eval-micro-batch-size= exit-duration-in-mins= exit-interval=
        exit-signal-handler exit-signal-handler-for-dataloader exit-signal-handler-for-training exit-signal=
        full-validation iter-per-epoch= iterations-to-skip=+ multiple-validation-sets skip-train
        start-eval-at-iter= test-mode train-data-exact-num-epochs= train-samples= train-sync-interval=
        train-tokens= validation-set-names=+
        """,
    ),
    (
        "`ssdsl run --save`",
        """
        save=
        """,
    ),
    (
        "`ssdsl run --save-every`",
        """
        persistent-save-interval= save-interval=
        """,
    ),
    (
        "`ssdsl run --resume`, of a checkpoint of ssdsl",
        """
        load=
        """,
    ),
    (
        "checkpoints: `ssdsl run --save`, `--save-every`, `--resume`",
        """
        allow-missing-conv-merge-checkpoint allow-missing-sound-model-checkpoint
        allow-missing-sound-projection-checkpoint allow-missing-vision-projection-checkpoint
        async-ckpt-cpu-priority= async-ckpt-io-priority= async-ckpt-use-cpu-shm async-save async-strategy=
        auto-detect-ckpt-format bert-load= check-weight-hash-across-dp-replicas-interval=
        ckpt-assume-constant-structure ckpt-convert-format= ckpt-convert-save=
        ckpt-convert-update-legacy-dist-opt-format ckpt-drop-redundant-extra-state ckpt-format=
        ckpt-fully-parallel-load ckpt-fully-parallel-load-exchange-algo=
        ckpt-fully-parallel-load-per-rank-objects ckpt-fully-parallel-load-process-group=
        ckpt-fully-parallel-save ckpt-fully-parallel-save-process-group= ckpt-pg-tensors-cache-create
        ckpt-pg-tensors-cache-path= ckpt-step= dataloader-save= disable-ckpt-load-validate-sharding-integrity
        disable-save-tokenizer-assets disable-strict-fsdp-dtensor-load
        disable-use-tokenizer-model-from-checkpoint-args dist-ckpt-format= dist-ckpt-optim-fully-reshardable
        dist-ckpt-save-pre-mcore-014 dist-ckpt-strictness= dist-ckpt-workers=
        distrib-optim-fully-reshardable-mem-efficient exit-on-missing-checkpoint finetune ict-load=
        inference-ckpt-non-strict language-model-checkpoint= load-main-params-from-ckpt load-tag=
        no-ckpt-fully-parallel-save no-ckpt-load-validate-sharding-integrity no-load-lr-state no-load-optim
        no-load-rng no-save-optim no-save-rng no-save-tokenizer-assets no-strict-fsdp-dtensor-load
        no-use-tokenizer-model-from-checkpoint-args non-persistent-ckpt-type= non-persistent-global-ckpt-dir=
        non-persistent-local-ckpt-algo= non-persistent-local-ckpt-dir= non-persistent-save-interval=
        override-ckpt-iteration= pretrained-checkpoint= replication replication-factor= replication-jump=
        reset-iteration save-activations-interval= save-dgrads-interval= save-params-interval=
        save-retain-interval= save-tokens-per-expert-interval= save-wgrads-interval= universal-checkpoint
        use-dist-ckpt use-mp-args-from-checkpoint-args use-persistent-ckpt-worker verify-integrity
        """,
    ),
    (
        "the data: `ssdsl run --data`, or a loader of your own",
        """
        allow-ambiguous-pad-tokens aml-data-download-path= audio-path= block-data-path= chat-template=
        classes-fraction= data-args-path= data-cache-path= data-impl= data-path=* data-per-class-fraction=
        data_path= dataloader-defer-npy-index-mmap dataloader-fast-cache-load dataloader-inter-document-masking
        dataloader-seed= dataloader-seq-length= dataloader-type= dataset-config= dataset-impl= dataset-provider=
        disable-msc disable-tokenizer-sentencepiece-ignore-extra-whitespaces embedding-path= enable-msc
        eod-mask-loss eos-id= evidence-data-path= fim-data fim-eod-token= fim-fragment-rate= fim-middle-token=
        fim-no-prefix= fim-pad-token= fim-prefix-token= fim-rate= fim-split-sample= fim-spm-rate=
        fim-suffix-token= finetune-data-files=+ finetune-data-split= finetune-hf-dataset= force-system-message
        hf-assign-unused-tokens=+ hf-token= image-path= image-tag-type= merge-file= mid-level-dataset-surplus=
        mmap-warmup mock-data mock-dataset-size= no-create-attention-mask-in-dataloader no-data-sharding
        no-mmap-bin-files no-tokenizer-sentencepiece-ignore-extra-whitespaces null-tokenizer-eod-id=
        null-tokenizer-pad-id= num-dataset-builder-threads= num-workers= object-storage-cache-path=
        offline-distillation-data= online-evaluation-config= only-keep-samples-with-img packing-buffer-size=
        packing-knapsack-algorithm= packing-seq-length= pad-token-id= per-dataset-sequences-path=
        per-split-data-args-path= phase-transition-iterations= prompt-path= prompt= query-in-block-prob=
        relax-sender-check relax-thinking-trace-check repeated-dataloader reset-attention-mask
        reset-position-ids retriever-seq-length= retro-workdir= return-data-index sample-rate= sft
        sft-tokenizer-prompt-format= short-seq-prob= special-tokens=* split= task= test-data-path=*
        tiktoken-num-special-tokens= tiktoken-pattern= titles-data-path= tokenizer-hf-no-include-special-tokens
        tokenizer-hf-no-use-fast tokenizer-keep-history-thinking tokenizer-metadata= tokenizer-model=
        tokenizer-prompt-format= tokenizer-sentencepiece-legacy tokenizer-special-tokens=+ total-seq-length=
        train-data-path=* train-data=+ train-desc-path= train-doc-idx-path= train-idx-path=
        train-sample-idx-path= train-shuffle-idx-path= trust-remote-code use-dataset-only= use-gigatoken
        use-loss-scaling use-new-dataloader-path use-one-sent-docs use-packed-sequence valid-data-path=*
        valid-data=* vocab-file=
        """,
    ),
    (
        "logs and profiles of a run: `ssdsl run --profile`",
        """
        app-tag-run-name= app-tag-run-version= config-logger-dir= disable-flight-recorder-dump-on-timeout
        disable-flight-recorder-extra-dump-on-exec disable-flight-recorder-include-only-active
        disable-log-loss-scale-to-tensorboard disable-straggler-on-startup dump-param-to-param-group-map=
        flight-recorder-dump-path= flight-recorder-include-stack-trace flight-recorder-trace-buffer-size=
        gpu-sniff-test-interval= kill-switch-file= log-batch-size-to-tensorboard log-device-memory-used
        log-energy log-interval= log-learning-rate-to-tensorboard log-max-attention-logit log-memory-interval=
        log-memory-to-tensorboard log-model-act-norms log-model-grad-norms log-num-zeros-in-grad
        log-optimizer-states-to-tensorboard log-params-norm log-progress log-straggler log-throughput
        log-timers-to-tensorboard log-validation-ppl-to-tensorboard log-world-size-to-tensorboard logging-level=
        memory-snapshot-path= moe-per-layer-logging moe-routing-trace-capture-hidden-states
        moe-routing-trace-capture-logits moe-routing-trace-dump-weights moe-routing-trace-max-training-iters=
        moe-routing-trace-path= no-barrier-with-level-1-timing no-flight-recorder-dump-on-timeout
        no-flight-recorder-extra-dump-on-exec no-flight-recorder-include-only-active
        no-log-learnig-rate-to-tensorboard no-log-learning-rate-to-tensorboard no-log-loss-scale-to-tensorboard
        no-one-logger nvtx-ranges one-logger-async one-logger-project= one-logger-run-name= otel-enabled
        otel-service-name= otel-span-groups= profile profile-backward profile-ranks=+ profile-step-end=
        profile-step-start= profile_steps= pytorch-profiler-collect-callstack pytorch-profiler-collect-chakra
        pytorch-profiler-collect-shapes record-memory-history record-shapes result-rejected-tracker-filename=
        run-workload-inspector-server straggler-ctrlr-port= straggler-minmax-count= tensorboard-dir=
        tensorboard-log-interval= tensorboard-queue-size= timers-log timing-log-level= timing-log-option=
        use-pytorch-profiler wandb-entity= wandb-exp-name= wandb-project= wandb-save-dir=
        """,
    ),
    (
        "`ssdsl run` ends at a loss that is not finite, without `--allow-nan`",
        """
        check-for-large-grads check-for-spiky-loss no-check-for-nan-in-loss-and-grad
        """,
    ),
    (
        "first values of weights: those of the model here",
        """
        data-parallel-random-init embedding-init-method-std= inference-rng-tracker init-method-std=
        init-method-xavier-uniform init-model-with-meta-device lazy-mpu-init no-initialization te-rng-tracker
        use-cpu-initialization
        """,
    ),
    (
        "`ssdsl run --precision {name}`, also of `compile`",
        """
        bf16 fp16
        """,
    ),
    (
        "the type of gradients and of the optimizer's state: `ssdsl simulate --fp32-grads` counts it",
        """
        accumulate-allreduce-grads-in-fp32 grad-reduce-in-bf16 keep-fp8-transpose-cache
        megatron-fsdp-grad-comm-dtype= megatron-fsdp-main-grads-dtype= megatron-fsdp-main-params-dtype=
        reuse-grad-buf-for-mxfp8-param-ag
        """,
    ),
    (
        "which kernel computes the same: `--kernels`",
        """
        apply-query-key-layer-scaling attention-backend= attention-softmax-in-fp32 batch-invariant-backend=
        batch-invariant-mode cross-entropy-fusion-impl= cross-entropy-loss-fusion cuda-graph-impl=
        cuda-graph-modules=+ cuda-graph-scope=+ cuda-graph-warmup-steps= deterministic-mode
        disable-bf16-reduced-precision-matmul disable-clone-scatter-output-in-embedding disable-jit-fuser
        disable-mamba-mem-eff-path disable-manual-gc-eval disable-mem-efficient-ln dsa-kernel-backend=
        embedding-weights-in-fp32 empty-unused-memory-level= enable-cuda-graph enable-experimental
        enable-fusions export-default-te-spec export-force-local-attention export-kv-cache-quant=
        export-legacy-megatron export-model-type= export-moe-apply-probs-on-input export-offline-model
        export-qk-l2-norm export-quant-cfg= export-real-quant-cfg= export-te-mcore-model external-cuda-graph
        flash-attention-version= fp16-lm-cross-entropy fp32-residual-connection fused-residual-rmsnorm
        gdp-cutedsl-kernel kitchen-attention-backend= mamba-training-ssm-states-dtype= manual-gc
        manual-gc-interval= memory-centric-tiled-linear mla-down-proj-fusion modelopt-enabled
        moe-apply-probs-on-input moe-grouped-gemm moe-mlp-glu-interleave-size= moe-pad-expert-input-to-capacity
        moe-permute-fusion moe-router-dtype= moe-router-fusion moe-router-padding-for-fp8
        moe-router-padding-for-quantization moe-shared-expert-glu-interleave-size= moe-single-grouped-bias
        moe-single-grouped-weight moe-use-grouped-tensor no-bias-dropout-fusion no-bias-gelu-fusion
        no-bias-swiglu-fusion no-clone-scatter-output-in-embedding no-gradient-accumulation-fusion
        no-manual-gc-eval no-masked-softmax-fusion no-persist-layer-norm no-query-key-layer-scaling
        no-rope-fusion onnx-safe= optimizer-cuda-graph output-logit-dtype= scattered-embeddings
        split-transformers synchronize-each-layer te-precision-config-file= tile-factor= transformer-impl=
        use-flash-attn use-flash-attn-builder use-flash-attn-triton use-flash-attn-v1 use-flash-attn-v2
        use-flashinfer-fused-rope use-fused-weighted-squared-relu use-grouped-gemm-for-dense-mlp
        use-grouped-gemm-for-shared-expert use-kitchen-attention use-legacy-models use-mcore-models use-te
        use-te-activation-func use-transformer-engine-op-fuser use-tutel
        """,
    ),
    (
        "the loss is the mean over all tokens of the batch",
        """
        calculate-per-token-loss no-calculate-per-token-loss
        """,
    ),
    (
        "how messages are sent and gathered in buckets: always beside computation, where it does not wait for them",
        """
        contigious-checkpointing create-all-gather-group create-moe-param-group ddp-average-in-collective
        ddp-bucket-size= ddp-num-buckets= ddp-pad-buckets-for-high-nccl-busbw
        ddp-param-name-patterns-for-fp32-local-accumulation=+ ddp-reduce-scatter-with-fp32-accumulation
        decoder-tp-comm-overlap defer-embedding-wgrad-compute delay-offload-until-cuda-graph
        disable-align-grad-reduce disable-tp-comm-bulk-dgrad disable-tp-comm-bulk-wgrad
        disable-tp-comm-overlap-ag disable-tp-comm-overlap-rs disable-tp-comm-split-ag disable-tp-comm-split-rs
        encoder-ddp-overlap ep-overlap-early-attn-memory-release fsdp-db-use-persist-buf-on-alloc-fail
        fsdp-double-buffer fsdp-manual-registration high-priority-a2a-comm-stream
        megatron-fsdp-enable-fine-grained-param-gather megatron-fsdp-max-pool-double-buffer
        megatron-fsdp-version= mimo-encoder-prefetch mimo-encoder-prefetch-debug mimo-encoder-prefetch-depth=
        moe-shared-expert-overlap nccl-ub no-align-grad-reduce no-align-param-gather
        no-async-tensor-model-parallel-allreduce no-contiguous-buffers-in-local-ddp
        no-gradient-reduce-div-fusion no-scatter-gather-tensors-in-pipeline no-tp-comm-bulk-dgrad
        no-tp-comm-bulk-wgrad no-tp-comm-overlap-ag no-tp-comm-overlap-rs no-tp-comm-split-ag
        no-tp-comm-split-rs no-use-layer-wise-param-layout optimize-broadcast
        overlap-dispatch-backward-with-experts-wgrad overlap-moe-expert-parallel-comm
        overlap-p2p-communication-warmup-flush suggested-communication-unit-size= symmetric-ar-type=
        tp-comm-bootstrap-backend= tp-comm-overlap-cfg= tp-comm-overlap-disable-qkv tp-comm-overlap-rs-dgrad
        use-nccl-ub use-ring-exchange-p2p wgrad-deferral-limit= zero-allgather-bucket-size=
        zero-contigious-gradients zero-reduce-bucket-size= zero-reduce-scatter
        """,
    ),
    (
        "memory of the host is pinned where that helps",
        """
        cpu-offloading-retain-pinned-cpu-buffers no-pin-cpu-grads no-pin-cpu-params
        overlap-cpu-optimizer-d2h-h2d use-pin-memory
        """,
    ),
    (
        "by which messages tokens reach their experts: this follows from the splits",
        """
        moe-combine-bwd-dtype= moe-deepep-num-sms= moe-dispatch-fwd-dtype= moe-enable-deepep
        moe-flex-dispatcher-backend= moe-flex-dispatcher-num-sms= moe-hybridep-num-blocks-permute=
        moe-hybridep-num-blocks-unpermute= moe-hybridep-num-sms-preprocessing= moe-hybridep-num-sms=
        moe-hybridep-pad-uneven-dispatch-inputs moe-ncclep-zero-copy moe-permute-fusion-into-hybridep
        moe-token-dispatcher-type=
        """,
    ),
    (
        "how processes find each other and what sends: `ssdsl run --backend`, `torchrun`",
        """
        disable-gloo-process-groups disable-symmetric-registration distributed-backend=
        distributed-timeout-seconds-after-init= fake-process-group high-priority-stream-groups=+ local-rank=
        local_rank= nccl-communicator-config-path= pipeline-model-parallel-comm-backend= sharp-enabled-group=
        use-sharp
        """,
    ),
    (
        "`ssdsl run --timeout`, in seconds",
        """
        distributed-timeout-minutes=
        """,
    ),
    (
        "what happens after a failure: `ssdsl run --max-restarts`",
        """
        adlr-autoresume adlr-autoresume-interval= calc-ft-timeouts enable-ft-package error-injection-rate=
        error-injection-type= fault-injector-delay-start-iteration= fault-injector-fault-delay=
        fault-injector-fault-probabilities= fault-injector-fault-types= fault-injector-mtti-seconds=
        fault-injector-num-ranks= fault-injector-offset-seconds= fault-injector-ranks= fault-injector-seed=
        ft-num-warmup-iters= inprocess-active-world-size= inprocess-barrier-timeout=
        inprocess-completion-timeout= inprocess-empty-cuda-cache inprocess-granularity= inprocess-hard-timeout=
        inprocess-heartbeat-interval= inprocess-heartbeat-timeout= inprocess-last-call-wait=
        inprocess-max-iterations= inprocess-monitor-process-interval= inprocess-monitor-thread-interval=
        inprocess-progress-watchdog-interval= inprocess-restart inprocess-soft-timeout=
        inprocess-termination-grace-time= rerun-mode=
        """,
    ),
    (
        "inference: a plan is for training",
        """
        bert-embedder-type= cache-mla-latents config-path= decode-only-cuda-graphs ds-inference
        enable-chunked-prefill flash-decode gt-path= indexer-batch-size= indexer-log-interval= inference
        inference-batch-times-seqlen-threshold= inference-coordinator-port= inference-cuda-graph-all-prefills
        inference-cuda-graph-max-tokens= inference-cuda-graph-scope= inference-disable-ep-consensus
        inference-disable-triton-nvls-kernels inference-dynamic-batching
        inference-dynamic-batching-async-sched-mode= inference-dynamic-batching-block-size=
        inference-dynamic-batching-buffer-guaranteed-fraction=
        inference-dynamic-batching-buffer-overflow-factor= inference-dynamic-batching-buffer-size-gb=
        inference-dynamic-batching-cuda-graph-mixed-prefill-count=
        inference-dynamic-batching-cuda-graph-sizing-distribution= inference-dynamic-batching-logprobs-mode=
        inference-dynamic-batching-mamba-memory-ratio= inference-dynamic-batching-max-requests=
        inference-dynamic-batching-max-tokens= inference-dynamic-batching-num-cuda-graphs=
        inference-dynamic-batching-paused-buffer-size-gb= inference-dynamic-batching-prefix-caching
        inference-dynamic-batching-prefix-caching-coordinator-policy=
        inference-dynamic-batching-prefix-caching-eviction-policy=
        inference-dynamic-batching-prefix-caching-mamba-gb=
        inference-dynamic-batching-prefix-caching-routing-alpha= inference-dynamic-batching-sampling-backend=
        inference-dynamic-batching-track-generated-token-events
        inference-dynamic-batching-track-paused-request-events inference-dynamic-batching-unified-memory-level=
        inference-fuse-tp-communication inference-grouped-gemm-backend= inference-logging-step-interval=
        inference-max-requests= inference-max-seq-length= inference-moe-disable-fused-quant-kernels
        inference-moe-token-dispatcher-type= inference-shards= inference-text-gen-server-logging
        inference-use-synchronous-zmq-collectives inference-wandb-logging input-image-path=
        mamba-inference-conv-states-dtype= mamba-inference-ssm-states-dtype= max-tokens-to-oom=
        mlp-chunks-for-prefill= moe-enable-routing-replay moe-eval-capacity-factor=
        moe-pad-experts-for-cuda-graph-inference nccl-all-reduce-for-prefill no-inference-disable-ep-consensus
        no-inference-dynamic-batching-prefix-caching no-inference-text-gen-server-logging
        no-inference-use-synchronous-zmq-collectives no-inference-wandb-logging num-partitions=
        num-samples-per-partition= num-speculative-tokens= out-seq-length= output-bert-embeddings output-path=
        partition-id= retriever-report-topk-accuracies=+ retriever-score-scaling temperature= top_k= top_p=
        use-legacy-static-engine use-mcore-inference use-same-sampling-seed-across-dp-ranks
        """,
    ),
    (
        "the file is read as if its keys were flags",
        """
        yaml-cfg=
        """,
    ),
)

REFUSED = (
    (
        "nothing yet: programs compute in fp32, bf16 or fp16",
        """
        disable-fp8-wgrad first-last-layers-bf16 fp4-format= fp4-param-gather fp4-quantizer-factory= fp4-recipe=
        fp8-amax-compute-algo= fp8-amax-history-len= fp8-e4m3 fp8-format= fp8-hybrid fp8-interval= fp8-margin=
        fp8-output-proj fp8-param-gather fp8-quantizer-factory= fp8-recipe= no-fp8-wgrad
        num-layers-at-end-in-bf16= num-layers-at-start-in-bf16= use-vision-backbone-fp8-arch
        """,
    ),
    (
        "reinforcement learning: this plan trains on given tokens",
        """
        grpo-clamp-eps-lower= grpo-clamp-eps-upper= grpo-entropy-term-weight=
        grpo-filter-groups-with-same-reward grpo-group-size= grpo-iterations= grpo-kl-beta=
        grpo-prompts-per-step= langrl-env-config= no-rl-inference-logprobs-is-correction
        no-rl-offload-inference-model-weights-when-idle no-rl-partial-rollouts no-rl-persist-cuda-graphs
        no-rl-skip-bos-token no-rl-training-cuda-graphs no-rl-use-sequence-packing
        no-rl-verify-model-weights-swap perform-rl-step refit-method= rl-consumption-granularity=
        rl-default-temperature= rl-default-top-k= rl-default-top-p= rl-durable-rollout-bank rl-generation-lag=
        rl-importance-sampling-truncation-coef= rl-inference-expert-model-parallel-size=
        rl-inference-expert-tensor-model-parallel-size= rl-inference-logprobs-is-correction
        rl-inference-model-unified-memory-level= rl-inference-parsers=*
        rl-inference-pipeline-model-parallel-size= rl-inference-tensor-model-parallel-size=
        rl-kv-cache-management-mode= rl-max-inflight-requests= rl-offload-inference-model-weights-when-idle
        rl-offload-optimizer-during-inference rl-partial-rollouts rl-persist-cuda-graphs rl-profile
        rl-profile-dir= rl-prompts-per-eval= rl-rollout-bank-dir= rl-rollout-bank-max-bytes=
        rl-sequence-packing-algo= rl-sequence-packing-max-sequences-per-bin= rl-skip-bos-token
        rl-submission-granularity= rl-training-cuda-graphs rl-use-sequence-packing rl-verify-model-weights-swap
        """,
    ),
    (
        "distillation: no teacher is part of this model",
        """
        export-kd-cfg= export-kd-teacher-ckpt-format= export-kd-teacher-load= export-kd-teacher-model-config=
        hidden-size-teacher= kd kd-alpha-ce= kd-beta-ce= kd-temp= load-teacher= logits-load-decode-threads=
        logits-load-dir= logits-load-ignore-errors logits-load-kd-loss-alpha= logits-load-msc-prefetch-depth=
        logits-load-prefetch-factor= logits-save-dir= logits-save-dtype= logits-save-top-k=
        logits-save-top-p-min-k= logits-save-top-p= mos num-attention-heads-teacher= num-experts-teacher=+
        num-layers-teacher= qad-train-target=
        """,
    ),
    (
        'nothing yet for parts of a layer: whole layers, `assign model["..."].activations to host`',
        """
        activation-offload-fraction= checkpoint-in-cpu delta-offload-bytes-across-pp-ranks=
        ds-sequence-parallel-fpdt ds-sequence-parallel-fpdt-chunk-size= ds-sequence-parallel-fpdt-offloading
        fine-grained-activation-offloading fine-grained-offloading-max-inflight-offloads=
        min-offloaded-tensor-size= moe-paged-stash moe-paged-stash-buffer-size-factor-cpu=
        moe-paged-stash-buffer-size-factor-cuda= moe-paged-stash-page-size= offload-modules=+
        """,
    ),
    (
        "saved activations are not cut over the devices of a layer: `sequence_parallel` cuts those that are whole",
        """
        distribute-checkpointed-activations distribute-saved-activations partition-activations
        """,
    ),
    (
        "nothing yet: a width of its own for this part",
        """
        context-parallel-ulysses-degree= enable-full-sharding-in-hsdp encoder-dp=
        encoder-pipeline-model-parallel-size= encoder-tensor-model-parallel-size= encoder-tp=
        expert-tensor-parallel-num-weight-shards= gtp-expert-remat-nccl-ub gtp-remat-nccl-ub
        gtp-remat-opt-in-modules=+ gtp-remat-reduce-scatter-with-fp32-accumulation hybrid-context-parallel
        llm-cp= llm-dp= llm-ep= llm-expt-tp= llm-offset= llm-only llm-pp= llm-tp= max-seqlen-per-dp-cp-rank=
        moe-extended-tp pipeline-model-parallel-split-rank= tensor-parallel-num-weight-shards=
        """,
    ),
    (
        "routing of its own: the model here sends each token to its best experts",
        """
        disable-moe-token-dropping disable-moe-top2-2nd-expert-sampling moe-expert-rank-capacity-factor=
        moe-input-jitter-eps= moe-latent-size= moe-min-capacity= moe-router-bias moe-router-bias-update-rate=
        moe-router-force-biased= moe-router-force-load-balancing moe-router-quantile-balancing-ema=
        moe-token-drop-policy= moe-token-dropping moe-upcycling-granularity= moe-use-upcycling
        num-experts-switch= unfreeze-router
        """,
    ),
    (
        "the model here predicts one token",
        """
        mtp-detach-heads mtp-hsm mtp-hybrid-override-pattern= mtp-loss-scaling-factor= mtp-use-repeated-layer
        """,
    ),
    (
        "no part of the model here",
        """
        attention-output-gate disable-dsa-indexer-rotate-activation disable-dsa-indexer-scoring-relu
        dsa-indexer-head-dim= dsa-indexer-k-norm-epsilon= dsa-indexer-k-norm-fp32 dsa-indexer-loss-coeff=
        dsa-indexer-n-heads= dsa-indexer-rope-interleaved dsa-indexer-skip-topk-offset= dsa-indexer-topk-freq=
        dsa-indexer-topk= dsa-indexer-use-sparse-loss enable-mhc-connections experimental-attention-variant=
        gdp-num-chunk-states-to-recompute= gdp-num-householder= linear-attention-freq= linear-conv-kernel-dim=
        linear-key-head-dim= linear-num-key-heads= linear-num-value-heads= linear-value-head-dim=
        mamba-head-dim= mamba-num-groups= mamba-num-heads= mamba-state-dim= mhc-init-gating-factor=
        mhc-num-residual-streams= mhc-recompute-layer-num= mhc-sinkhorn-iterations= mlp-chunks-for-training=
        no-dsa-indexer-rotate-activation no-dsa-indexer-scoring-relu
        """,
    ),
    (
        "positions of their own: those of the model here are others",
        """
        mrope-section=+ mscale-all-dim= mscale= no-rope-freq= no-yarn-correction-range-round-to-int
        relative-attention-max-distance= relative-attention-num-buckets= rotary-interleaved
        rotary-seq-len-interpolation-factor= yarn-beta-fast= yarn-beta-slow= yarn-correction-range-round-to-int
        yarn-original-max-position-embeddings=
        """,
    ),
    (
        "no part of the model here",
        """
        heterogeneous-layers-config-encoded-json= heterogeneous-layers-config-path= mup-attn-scale-power=
        mup-base-head-dim= mup-base-hidden-size= mup-embedding-mult= mup-output-mult= mup-width-mult= qk-clip
        qk-clip-alpha= qk-clip-threshold= qk-l2-norm use-mup
        """,
    ),
    (
        "in your own loop: batches of any size are taken, but this plan is for one",
        """
        curriculum-learning data-efficiency-curriculum-learning random-ltd
        """,
    ),
    (
        "the batch stays as it is",
        """
        decrease-batch-size-if-needed
        """,
    ),
    (
        "images and sounds are no part of the model here",
        """
        allow-checkpoint-without-temporal-compression allow-cross-sample-attention allow-large-videos
        apply-data-augment audio-encoder-model= class-token-len= conv-merging dino-bottleneck-size=
        dino-freeze-last-layer= dino-head-hidden-size= dino-local-crops-number= dino-local-img-size=
        dino-norm-last-layer dino-teacher-temp= dino-warmup-teacher-temp-epochs= dino-warmup-teacher-temp=
        disable-vision-class-token dynamic-resolution dynamic-resolution-max-patches=
        dynamic-resolution-min-patches= dynamic-resolution-min-side= dynamic-resolution-no-truncate
        efficient-video-sampling-variant= image-break-token= image-seq-length= image-size= image-token-id=
        mask-factor= mask-type= masked-tiling-dynamic-resolution match-tiling-dynamic-resolution max-num-tiles=
        num-frames= pixel-shuffle radio-cpe-aspect-ratio-select radio-disable-cpe radio-force-cpe-eval-mode
        radio-force-eval-mode radio-interpolate-only-cpe recompute-granularity-vision= recompute-method-vision=
        recompute-sound recompute-sound-projection recompute-vision recompute-vision-num-layers=
        recompute-vision-projection separate-video-embedder sound-batch-split= sound-clip-duration=
        sound-embedding-size= sound-min-duration= sound-model-type= sound-pad-to-clip-duration
        sound-target-rate= swin-backbone-type= thumbnail-area-threshold= use-area-weighted-aspect-ratio
        use-thumbnail use-tile-tags use-tiling video-aug-scale-frames-up= video-aug-scale-resolution-only
        video-aug-scale-resolution-up= video-default-fps= video-frame-temporal-jitter
        video-maintain-aspect-ratio video-max-num-frames= video-min-num-frames= video-prompt-version=
        video-target-img-size= video-target-num-patches= video-temporal-patch-size= vision-pretraining
        vision-pretraining-type= vision-projection-type=
        """,
    ),
    (
        "two encoders are no part of the model here",
        """
        biencoder-projection-dim= biencoder-shared-query-context-model ict-head-size=
        """,
    ),
    (
        "retrieval is no part of the model here",
        """
        retro-add-retriever retro-cyclic-train-iters= retro-encoder-attention-dropout=
        retro-encoder-hidden-dropout= retro-encoder-layers= retro-gpt-tokenizer-type= retro-num-neighbors=
        retro-num-retrieved-chunks= retro-project-dir= retro-return-doc-ids
        """,
    ),
    (
        "all weights train; in a module of your own `requires_grad_(False)` freezes some",
        """
        freeze-LM freeze-ViT freeze-all-layers freeze-base-for-mtp freeze-lm freeze-projection
        freeze-sound-model freeze-sound-projection freeze-vision-projection freeze-vit
        """,
    ),
)


def _flags() -> dict[str, Flag]:
    found = {}
    for place, groups in ((ItemList.REFUSED, RULED), (ItemList.SILENT, SILENT), (ItemList.REFUSED, REFUSED)):
        for reason, words in groups:
            for word in words.split():
                name, sign, values = word.partition("=")
                found[name] = Flag(name, sign + values, place, reason, groups is RULED)
    return found


FLAGS = _flags()
