"""`ssdsl lsp`: what editors ask about a plan while it is written, by the language server protocol."""
