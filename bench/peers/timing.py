# SPDX-License-Identifier: Apache-2.0
"""Time on the GPU: CUDA events around replays of a CUDA graph, and entries in the format of Google Benchmark."""
import statistics

import torch


def captured(work):
    """work() as one CUDA graph; call the result to replay it. Not on the default stream, which cannot be captured: autograd runs
    a backward where its forward ran."""
    work()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        work()
    return graph.replay


def milliseconds(work, iterations=1, before=None):
    """Mean over iterations; `before` runs untimed ahead of each."""
    total = 0.0
    torch.cuda.synchronize()
    for _ in range(iterations if before else 1):
        if before:
            before()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(1 if before else iterations):
            work()
        stop.record()
        stop.synchronize()
        total += start.elapsed_time(stop)
    return total / iterations


def quick_time(work):
    """For choosing between variants; launches are captured, since work may be shorter than a launch."""

    def several():
        for _ in range(8):
            work()

    replay = captured(several)
    replay()
    return milliseconds(replay, 3)


def repetitions(work, repeats=1, before=None):
    """Means of five repetitions of at least 20 ms each; three of one iteration when that takes longer than 200 ms."""
    if before:
        before()
    once = milliseconds(work)
    iterations = max(1, min(200, int(20 / once)))
    return [milliseconds(work, iterations, before) / repeats for _ in range(3 if once > 200 else 5)]


class Flush:
    """Fills the L2 cache with other memory."""

    def __init__(self):
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        self.memory = torch.empty(2 * l2, dtype=torch.uint8, device="cuda")

    def __call__(self):
        self.memory.zero_()


def copy_times():
    """Of 1 GiB from device to device."""
    source, target = (torch.zeros(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    return repetitions(lambda: target.copy_(source)), 2 << 30


class Report:
    """Collects entries; every entry is a median, a standard deviation and a coefficient of variation of its repetitions."""

    def __init__(self, context):
        self.document = {"context": context, "benchmarks": []}
        self.copy_bytes_per_second = None

    def add(self, name, times, moved_bytes, **counters):
        median = statistics.median(times)
        deviation = statistics.stdev(times)
        share = lambda time: moved_bytes / (time * 1e-3 * self.copy_bytes_per_second)
        for kind, time in (("median", median), ("stddev", deviation), ("cv", deviation / median)):
            entry = {"name": f"{name}_{kind}", "run_name": name, "run_type": "aggregate", "repetitions": len(times),
                     "aggregate_name": kind, "real_time": time, "time_unit": "ms"}
            if kind == "median":
                entry |= {"bytes": moved_bytes, "copy_share": share(time), **counters}
            self.document["benchmarks"].append(entry)
        print(f"{name:45} {median:10.4f} ms  copy_share {share(median):.3f}  "
              + "  ".join(f"{key} {value if isinstance(value, str) else f'{value:.3g}'}" for key, value in counters.items()),
              flush=True)

    def skip(self, names, reason):
        """Entries that say why they have no time; those that were measured before the reason arose keep theirs."""
        measured = {benchmark["run_name"] for benchmark in self.document["benchmarks"]}
        for name in names:
            if name in measured:
                continue
            self.document["benchmarks"].append(
                {"name": name, "run_name": name, "run_type": "iteration", "error_occurred": True, "error_message": reason})
            print(f"{name:45} skipped: {reason}", flush=True)
