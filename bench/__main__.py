"""`python -m bench [steps | compile | accuracy | dropout] [options]`, of all or one of them; `python -m bench fuzz`."""

import sys

from bench import accuracy, compile, dropout, steps
from bench.fuzz import run as fuzz

BENCHMARKS = {"steps": steps.main, "compile": compile.main, "accuracy": accuracy.main, "dropout": dropout.main}


def main(arguments: list[str]) -> int:
    if not arguments:
        return max([benchmark([]) for benchmark in BENCHMARKS.values()])
    name, *options = arguments
    if name == "fuzz":
        return fuzz.main(options)
    if name not in BENCHMARKS:
        print(__doc__, file=sys.stderr)
        return 2
    return BENCHMARKS[name](options)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
