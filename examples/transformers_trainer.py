"""A `transformers.Trainer` that trains as a plan says; the rest of Trainer's script stays as it is.

trainer = PlanTrainer(model=model, args=arguments, train_dataset=data, plan="tensor_parallel", params={"T": 2})
trainer.train(resume_from_checkpoint=True)

Started with torchrun. Trainer's loop, callbacks, logs and schedules are its own. The engine loads the batches, takes
the steps, and saves and loads checkpoints, which any plan goes on with; Trainer wraps no model and gathers no gradient.
A batch has `per_device_train_batch_size` samples for each process, whatever the plan does with the processes. After a
resume in the middle of an epoch Trainer's `epoch` counts from the epoch's begin; steps and batches are right.

Needs `pip install 'transformers[torch]'`, which brings accelerate. Run as a program it trains a tiny Llama that counts.
"""

import argparse
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import default_collate
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import ssdsl

STATE = "engine"  # the engine's folder in a checkpoint of Trainer


class PlanTrainer(Trainer):
    """Trainer on an engine. Gradients of accumulated batches are averaged, each batch with the same weight."""

    def __init__(self, *given: Any, plan: str, params: Mapping[str, int] | None = None, **options: Any) -> None:
        super().__init__(*given, **options)
        self.plan, self.params = plan, params or {}
        self.engine: Any = None
        self.args.ignore_data_skip = True  # the engine's loader goes on where it was

    def get_train_dataloader(self) -> Any:
        if self.engine is None:
            args, data = self.args, self.train_dataset
            collate = self.data_collator or default_collate
            example = collate([data[i] for i in range(args.train_batch_size * args.world_size)])
            self.engine = ssdsl.engine(self.plan, self.model, dict(example), params=self.params, seed=args.seed)
            self.train_loader = self._loader(data, shuffle=True)
        return self.train_loader

    def _loader(self, data: Any, **options: Any) -> Any:
        size = self.args.train_batch_size * self.args.world_size
        return self.engine.loader(data, size, collate_fn=self.data_collator, seed=self.args.seed, **options)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            make, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
            decayed = "|".join(self.get_decay_parameter_names(self.model))
            self.optimizer = self.engine.optimizer(
                make, groups={decayed: {"weight_decay": self.args.weight_decay}}, weight_decay=0.0, **options
            )
        return self.optimizer

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        self.create_optimizer()
        self.create_scheduler(num_training_steps=max_steps)
        if resume_from_checkpoint is not None:
            self.engine.resume(os.path.join(resume_from_checkpoint, STATE))
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = train_dataloader
        return self.model, train_dataloader

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        count = self.current_gradient_accumulation_steps
        loss = self.engine.step(
            inputs,
            clip=self.args.max_grad_norm or None,
            update=self.accelerator.gradient_state.sync_gradients,
            scale=1 / count,
        )
        return torch.tensor(
            loss / count, device=self.args.device
        )  # no gradient is left: Trainer's own step does nothing

    def _get_num_items_in_batch(self, batch_samples: Any, device: torch.device) -> None:
        """A rank may have no labels, so ranks do not count and gather them: a loss is the mean that the model gives."""

    def _clip_grad_norm(self, model: Any) -> float | None:
        return self.engine.grad_norm

    def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> Any:
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        metrics = {
            f"{metric_key_prefix}_loss": self.engine.evaluate(self._loader(data, evaluate=True, drop_last=False))
        }
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """All of the engine's state; `ssdsl checkpoint to-safetensors` makes a model of it."""
        self.engine.save(os.path.join(output_dir or self.args.output_dir, STATE), wait=True)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """They are in the engine's checkpoint; so is what the three below would load."""

    def _load_optimizer_and_scheduler(self, checkpoint: str) -> None: ...

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None: ...


class Counts(torch.utils.data.Dataset):
    """Sequences that count, from anywhere."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(16) + 5 * index) % 64
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--plan", default="data_parallel")
    options.add_argument("--set", action="append", default=[], metavar="NAME=N")
    options.add_argument("--steps", type=int, default=12)
    options.add_argument("--accumulate", type=int, default=1)
    options.add_argument("--resume", action="store_true")
    options.add_argument("--out", default="runs/trainer")
    given = options.parse_args()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))
    arguments = TrainingArguments(
        given.out,
        max_steps=given.steps,
        per_device_train_batch_size=8 // int(os.environ.get("WORLD_SIZE", "1")),
        gradient_accumulation_steps=given.accumulate,
        learning_rate=1e-2,
        weight_decay=0.1,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        logging_steps=1,
        save_steps=6,
        eval_steps=6,
        eval_strategy="steps",
        use_cpu=True,
        ddp_backend="gloo",
        report_to="none",
        disable_tqdm=True,
    )
    params = {name: int(number) for name, _, number in (each.partition("=") for each in given.set)}
    trainer = PlanTrainer(
        model=model, args=arguments, train_dataset=Counts(), eval_dataset=Counts(), plan=given.plan, params=params
    )
    trainer.train(resume_from_checkpoint=given.resume)


if __name__ == "__main__":
    main()
