"""What the command lines of long runs over operators share: shard, operators, dtypes, samples, report."""

from pathlib import Path


def add_arguments(parser, dtypes, samples=None):
    parser.add_argument("--shard", default="1/1", help="k/n: every n-th operator, from the k-th")
    parser.add_argument("--operator", action="append", help="only this operator (may be repeated)")
    parser.add_argument("--dtype", action="append", choices=sorted(dtypes))
    parser.add_argument("--samples", type=int, default=samples, help="at most so many of each pair")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quiet", action="store_true")


def chosen(options, named):
    """Those of (name, operator) that the shard and `--operator` leave, in their order."""
    part, parts = map(int, options.shard.split("/"))
    for number, (name, operator) in enumerate(named):
        if number % parts == part - 1 and (not options.operator or name in options.operator):
            yield name, operator
