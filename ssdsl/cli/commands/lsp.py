"""`ssdsl lsp`: the language server."""

import importlib.util

import typer


def lsp() -> None:
    """Serve an editor: mistakes while a plan is written, completion, what a name is in this model.

    It speaks the language server protocol on stdin and stdout; editors/ has how editors start it. It is in the extra
    `ssdsl[lsp]`.
    """
    if importlib.util.find_spec("pygls") is None:
        raise typer.BadParameter("the server needs pygls: pip install 'ssdsl[lsp]'", param_hint="lsp")
    from ssdsl.lsp.server import serve

    serve()
