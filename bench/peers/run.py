# SPDX-License-Identifier: Apache-2.0
"""Runs the peers on the work of the C++ benchmarks: checks each against float64, then times it (docs/benchmarks.md)."""
import argparse
import datetime
import json
import re
import traceback

import torch
import torch._functorch.config
import torch._inductor.config
import triton

import paper
import shapes
from einsum import attend, attend_in_sums, compiled
from errors import errors_of
from installed import single_head_peers
from timing import Flush, Report, captured, copy_times, quick_time, repetitions
from work import AutogradChain, DeltaCalls, make_inputs

CALLS_PER_GRAPH = 64
# More than rounding in bfloat16 makes of any of them: what exceeds it is another function.
LARGEST_ERROR = 0.1
SINGLE_HEAD = single_head_peers()


def attention(peer, shape):
    """The peer's differentiable attend(rows, query, norm_weight, num_heads), and what makes its rows of a list of them."""
    if peer in SINGLE_HEAD:
        return SINGLE_HEAD[peer], list
    if peer == "compile":
        return compiled((shape.num_positions, shape.width, shape.num_heads), len(shape.num_rows) > 1), torch.stack
    return attend, torch.stack


def exact_chain(shape):
    return lambda inputs: AutogradChain(shape, inputs, attend)


def and_add(function):
    return lambda rows, query, norm_weight, num_heads, partial: function(rows, query, norm_weight, num_heads) + partial


def peak_bytes(work, given_bytes):
    """Memory that is allocated at the worst moment beyond what was there before and outputs of given_bytes."""
    work.release()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work.run_once()
    return torch.cuda.max_memory_allocated() - before - given_bytes


class Peer:
    """One peer's entries."""

    def __init__(self, name, report):
        self.name = name
        self.report = report

    def add(self, name, work, moved, counters=None, **how):
        self.report.add(f"peer/{self.name}/{name}", repetitions(work, **how), moved, **(counters or {}))

    def check(self, work, shape, inputs, exact_work):
        counters = errors_of(work, shape, inputs, exact_work)
        if not max(counters.values()) < LARGEST_ERROR:
            raise SystemExit(f"peer/{self.name}/{shape.name} is wrong: {counters}")
        return counters

    def tuned(self, shape):
        """What was chosen, for the entry's label."""
        return {"label": json.dumps(paper.tune(shape, quick_time))} if self.name == "paper" else {}

    def calls(self, shape):
        """The work of a shape, checked, with its counters and the bytes forward and backward must move."""
        inputs = make_inputs(shape, "cuda")
        label = self.tuned(shape)
        work = (paper.PaperChain(shape, inputs) if self.name == "paper"
                else AutogradChain(shape, inputs, *attention(self.name, shape)))
        counters = self.check(work, shape, inputs, exact_chain(shape))
        counters["peak_bytes"] = peak_bytes(work, (len(shape.num_rows) + shape.num_rows[-1]) * shape.row_bytes)
        weights = self.name == "paper"
        moved = shapes.forward_bytes(shape, weights), shapes.backward_bytes(shape, 2 if weights else 1, weights)
        return work, counters | label, *moved

    def chain(self, shape):
        work, counters, forward_bytes, backward_bytes = self.calls(shape)
        work.release()
        self.add(shape.name, captured(work.run_once), forward_bytes + backward_bytes, counters)
        if self.name == "paper":
            self.add(f"{shape.name}/forward", captured(work.forward), forward_bytes)
            self.add(f"{shape.name}/backward", captured(work.backward), backward_bytes)

    @torch._functorch.config.patch(donated_buffer=False)  # one forward, many backwards
    def call(self, shape):
        work, counters, forward_bytes, backward_bytes = self.calls(shape)
        self.add(f"call/forward/{shape.name}", captured(work.forward), forward_bytes, counters)
        work.forward()
        self.add(f"call/backward/{shape.name}", captured(lambda: work.backward(retain=True)), backward_bytes)

    def decode(self, shape):
        inputs = make_inputs(shape, "cuda")
        label = self.tuned(shape)
        parameters = inputs.queries[0], inputs.norm_weights[0], shape.num_heads
        if self.name == "paper":
            rows = torch.stack(inputs.rows)
            once = lambda: paper.forward(rows, *parameters, saves=False)
        else:
            function, gather = attention(self.name, shape)
            once = torch.no_grad()(lambda: function(gather(inputs.rows), *parameters))
        moved = shapes.forward_bytes(shape)
        chain = captured(lambda: [once() for _ in range(CALLS_PER_GRAPH)])
        self.add(f"decode/{shape.name}", chain, moved, label, repeats=CALLS_PER_GRAPH)
        self.add(f"decode/{shape.name}/cold", captured(once), moved, before=Flush())

    def delta(self, shape):
        inputs = make_inputs(shape, "cuda")
        label = self.tuned(shape)
        function = {"einsum": and_add(attend), "compile": and_add(attend_in_sums), "paper": paper.PaperCall.apply}[self.name]
        work = DeltaCalls(shape, inputs, function)
        if self.name == "compile":
            torch._dynamo.reset()
            work.call = torch.compile(work.call, dynamic=False)
        counters = self.check(work, shape, inputs, lambda x: DeltaCalls(shape, x, and_add(attend)))
        counters["peak_bytes"] = peak_bytes(work, shape.row_bytes)
        self.add(shape.name, work.run, shapes.delta_bytes(shape), counters | label)


def run(report, pattern):
    copies, moved = copy_times()
    report.copy_bytes_per_second = moved / (sorted(copies)[len(copies) // 2] * 1e-3)
    report.add("copy", copies, moved)
    work = [(Peer.chain, shape, (shape.name,)) for shape in shapes.CHAINS]
    work += [(Peer.call, shape, (f"call/forward/{shape.name}", f"call/backward/{shape.name}")) for shape in shapes.CALLS]
    work += [(Peer.decode, shape, (f"decode/{shape.name}",)) for shape in shapes.DECODES]
    work += [(Peer.delta, shapes.DELTA, (shapes.DELTA.name,))]
    for measure, shape, names in work:
        one_head = shape.num_heads == 1 and len(shape.num_rows) == 1
        for peer in ("einsum", "compile", "paper", *(SINGLE_HEAD if one_head else ())):
            names_here = [f"peer/{peer}/{name}" for name in names]
            if not any(re.search(pattern, name) for name in names_here):
                continue
            try:
                measure(Peer(peer, report), shape)
            except torch.OutOfMemoryError:
                report.skip(names_here, "out of memory")
            except Exception as error:  # of a compiler, or of another project's kernels
                traceback.print_exc()
                report.skip(names_here, f"{type(error).__name__}: {error}"[:300])
            torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--benchmark_out", required=True, help="the JSON file to write")
    parser.add_argument("--benchmark_filter", default="", help="a regular expression, searched for in names")
    options, _ = parser.parse_known_args()
    report = Report({
        "device": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda,
        "l2": "warm, but for names that end in /cold",
    })
    torch.cuda.set_stream(torch.cuda.Stream())
    torch._inductor.config.compile_threads = 1  # a graph has few kernels; starting a pool takes longer
    try:
        run(report, options.benchmark_filter)
    finally:
        with open(options.benchmark_out, "w", encoding="utf-8") as file:
            json.dump(report.document, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
