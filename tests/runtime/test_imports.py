"""What a process of a program imports before it runs: nothing that only a compiler needs."""

import subprocess
import sys

HEAVY = ("torch._dynamo", "torch._inductor", "sympy", "networkx", "transformers")


def test_the_runtime_imports_no_compiler() -> None:
    code = f"import sys, ssdsl.runtime; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
