#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what moved between two result files by more than the spread of their repetitions: compare.py before.json after.json"""
import argparse
import statistics
import sys

from results import load


def moved(before, after):
    """(name, time before, time after, spread) of what both have and what differs by more than the spread: twice the deviations of
    both, added up; where neither says how far its repetitions were apart, 1%."""
    for name in sorted(before.keys() & after.keys()):
        old, new = before[name], after[name]
        spread = 2 * (old.deviation + new.deviation) or 0.01 * old.time
        if abs(new.time - old.time) > spread:
            yield name, old.time, new.time, spread


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before")
    parser.add_argument("after")
    options = parser.parse_args()
    before, after = load(options.before), load(options.after)
    ratios = [after[name].time / before[name].time for name in before.keys() & after.keys()]
    if not ratios:
        sys.exit("the files have no entry in common")
    print(f"{'':50} {'before, us':>12} {'after, us':>12} {'ratio':>7} {'spread':>7}")
    for name, old, new, spread in moved(before, after):
        print(f"{name:50} {old:12.2f} {new:12.2f} {new / old:7.3f} {spread / old:7.3f}")
    print(f"{len(ratios)} entries in both, geometric mean of ratios {statistics.geometric_mean(ratios):.3f}")
    for title, names in (("only before", before.keys() - after.keys()), ("only after", after.keys() - before.keys())):
        for name in sorted(names):
            print(f"{title}: {name}")


if __name__ == "__main__":
    main()
