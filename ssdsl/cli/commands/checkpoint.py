"""`ssdsl checkpoint`: shows checkpoints, compares them, and converts them to the files of a single device and back."""

from pathlib import Path
from typing import Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.terminal import print_json, print_views, talk

checkpoint = typer.Typer(no_args_is_help=True, help="Look at checkpoints, compare and convert them.")
Folder = Annotated[str, typer.Argument(metavar="DIR", help="A run's folder, for its newest, or one in it.")]
New = Annotated[str, typer.Argument(metavar="DIR", help="A run's folder, which gets one more checkpoint.")]
TorchFile = Annotated[str, typer.Argument(metavar="FILE", help="A file of torch.save.")]
Safetensors = Annotated[
    str, typer.Argument(metavar="PATH", help="A .safetensors file, or a folder of them as Hugging Face has it.")
]
Optim = Annotated[bool, typer.Option("--optim", help="The optimizer's state too, as its state_dict.")]
ShardSize = Annotated[float, typer.Option("--shard-size", min=0.001, metavar="GB", help="Largest file, in 10^9 bytes.")]


@checkpoint.command("show")
def show(folder: Folder, json: options.Json = False) -> None:
    """Show what a checkpoint holds: its tensors, and the state of the run."""
    from ssdsl.run.checkpoints.convert import open_checkpoint
    from ssdsl.show.tables.checkpoint import facts_view, tensors_view
    from ssdsl.show.view import as_json

    found = open_checkpoint(folder)
    tensors, facts = tensors_view(found), facts_view(found)
    if json:
        state = {row["name"]: row["value"] for row in as_json(facts)}
        print_json({"folder": str(found.folder), "tensors": as_json(tensors), "state": state})
        return
    print_views(tensors, facts)


@checkpoint.command("diff")
def diff(first: Folder, second: Folder, json: options.Json = False) -> None:
    """Say which tensors of two checkpoints differ, and by how much; the exit status is 1 if any does."""
    from ssdsl.run.checkpoints.convert import open_checkpoint
    from ssdsl.run.checkpoints.difference import differences
    from ssdsl.show.tables.checkpoint import differences_view
    from ssdsl.show.view import as_json

    one, other = open_checkpoint(first).named({}), open_checkpoint(second).named({})
    view = differences_view(list(differences(one, other)), len(one.tensors.keys() | other.tensors.keys()))
    if json:
        print_json(as_json(view))
    else:
        print_views(view)
    if view.rows:
        raise typer.Exit(1)


@checkpoint.command("to-torch")
def to_torch(folder: Folder, file: TorchFile, optim: Optim = False) -> None:
    """Write a checkpoint as one file: torch.load(FILE, weights_only=True)["model"] is the model's state_dict."""
    from ssdsl.run.checkpoints import convert

    convert.to_torch(convert.open_checkpoint(folder), Path(file), optim)
    _say(file)


@checkpoint.command("from-torch")
def from_torch(file: TorchFile, folder: New) -> None:
    """Make a checkpoint of a state_dict, or of {"model": state_dict, "optim": the optimizer's}."""
    from ssdsl.run.checkpoints import convert

    convert.from_torch(Path(file), Path(folder))
    _say(folder)


@checkpoint.command("to-safetensors")
def to_safetensors(folder: Folder, path: Safetensors, shard_size: ShardSize = 5.0) -> None:
    """Write the weights of a checkpoint as safetensors, by their names."""
    from ssdsl.run.checkpoints import convert

    convert.to_safetensors(convert.open_checkpoint(folder), Path(path), round(shard_size * 1e9))
    _say(path)


@checkpoint.command("from-safetensors")
def from_safetensors(path: Safetensors, folder: New) -> None:
    """Make a checkpoint of safetensors, by their names."""
    from ssdsl.run.checkpoints import convert

    convert.from_safetensors(Path(path), Path(folder))
    _say(folder)


def _say(path: str) -> None:
    talk.print(f"written: {path}", soft_wrap=True, markup=False)
