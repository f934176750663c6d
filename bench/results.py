# SPDX-License-Identifier: Apache-2.0
"""Reads result files in the JSON of Google Benchmark."""
import json
import re
import statistics
from collections import defaultdict
from dataclasses import dataclass

_MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
# What the tool appends to a registered name.
_SUFFIX = re.compile(r"/(manual_time|real_time|process_time|(iterations|repeats|min_time|threads):[^/]*)(?=/|$)")


@dataclass
class Entry:
    time: float  # median, microseconds
    deviation: float  # standard deviation of the repetitions, microseconds; 0 where there is one
    counters: dict  # everything else that the entry says


def load(path):
    """{registered name: Entry}; entries that failed are left out."""
    groups = defaultdict(list)
    for name, benchmark in _benchmarks(path):
        if not benchmark.get("error_occurred"):
            groups[name].append(benchmark)
    return {name: _entry(group) for name, group in groups.items()}


def failures(path):
    """{registered name: message} of entries that failed."""
    return {name: benchmark["error_message"] for name, benchmark in _benchmarks(path) if benchmark.get("error_occurred")}


def _benchmarks(path):
    with open(path, encoding="utf-8") as file:
        return [(_SUFFIX.sub("", benchmark["run_name"]), benchmark) for benchmark in json.load(file)["benchmarks"]]


def _entry(group):
    aggregates = {b["aggregate_name"]: b for b in group if b["run_type"] == "aggregate"}
    if "median" in aggregates:
        median = aggregates["median"]
        deviation = _time(aggregates["stddev"]) if "stddev" in aggregates else 0.0
        return Entry(_time(median), deviation, median)
    times = [_time(b) for b in group]
    return Entry(statistics.median(times), statistics.stdev(times) if len(times) > 1 else 0.0, group[0])


def _time(benchmark):
    return benchmark["real_time"] * _MICROSECONDS[benchmark["time_unit"]]
