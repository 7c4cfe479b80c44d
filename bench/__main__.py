"""`python -m bench [steps | compile | accuracy] [options]`: all benchmarks, or one of them."""

import sys

from bench import accuracy, compile, steps

BENCHMARKS = {"steps": steps.main, "compile": compile.main, "accuracy": accuracy.main}


def main(arguments: list[str]) -> int:
    if not arguments:
        return max([benchmark([]) for benchmark in BENCHMARKS.values()])
    name, *options = arguments
    if name not in BENCHMARKS:
        print(__doc__, file=sys.stderr)
        return 2
    return BENCHMARKS[name](options)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
