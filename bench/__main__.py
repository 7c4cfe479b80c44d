"""`python -m bench [steps | training | compile]`: all benchmarks, or one.

`python -m bench fuzz | models | published | rounding | foresight | same | gpus | memory | editor | replan | works`
checks;
`python -m bench partitions` compares torch.compile's kernels with the simulator's;
`python -m bench papers` writes bench/results/papers.md.
`python -m bench hfplans` compares the plans of transformers with what right programs need, and runs them.
"""

import sys

from bench import compile, editor, gpus, memory, partitions, replan, steps, training
from bench.foresight import run as foresight
from bench.fuzz import run as fuzz
from bench.hfplans import run as hfplans
from bench.models import run as models
from bench.papers import run as papers
from bench.published import run as published
from bench.rounding import run as rounding
from bench.same import run as same
from bench.works import run as works

BENCHMARKS = {
    "steps": steps.main,
    "training": training.main,
    "compile": compile.main,
}
PAGES = {
    "papers": papers.main,
    "partitions": partitions.main,
    "hfplans": hfplans.main,
}  # which write a page, or print one
CHECKS = {
    "fuzz": fuzz.main,
    "models": models.main,
    "published": published.main,
    "rounding": rounding.main,
    "foresight": foresight.main,
    "same": same.main,
    "gpus": gpus.main,
    "memory": memory.main,
    "editor": editor.main,
    "replan": replan.main,
    "works": works.main,
}  # which are right or wrong


def main(arguments: list[str]) -> int:
    if not arguments:
        return max([benchmark([]) for benchmark in BENCHMARKS.values()])
    name, *options = arguments
    if name in CHECKS | PAGES:
        return (CHECKS | PAGES)[name](options)
    if name not in BENCHMARKS:
        print(__doc__, file=sys.stderr)
        return 2
    return BENCHMARKS[name](options)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
