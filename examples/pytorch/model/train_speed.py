# SPDX-License-Identifier: Apache-2.0
"""Time and peak memory of a training step of the paper's models: the plain Transformer, MHAR by this library, and MHAR by the
paper's algorithm. Needs a GPU.

    python train_speed.py --out h200_train.json --profile

A step is forward, backward, clipping and fused AdamW on random tokens, in bfloat16, replayed from a CUDA graph; everything but
routing is compiled by torch.compile, one layer at a time.
"""
import argparse
import datetime
import gc
import json
import statistics
import time
from dataclasses import replace

import torch
import torch._dynamo

from decoder import PAPER, Decoder

BATCH = {"100M": (8, 2048), "350M": (4, 1024), "1B": (4, 1024)}  # sequences, tokens of each
# Part of a step -> words in the names of its kernels; the first part that fits counts.
PARTS = {
    "routing": ("mhar", "forward_kernel", "backward_kernel"),
    "attention": ("flash", "fmha", "sdpa"),
    "matrix products": ("nvjet", "gemm", "cutlass", "cublas", "splitK"),
    "optimizer": ("multi_tensor", "adam", "lpnorm"),
    "norms, activations, loss": ("triton",),
    "other": ("",),
}


def config_of(scale, mode):
    config = PAPER[scale]
    if mode == "plain":
        return config
    routing = "router" if mode == "fused" else mode
    return replace(config, mode="full", routing_heads=config.kv_heads, routing=routing, fused_norms=mode == "fused")


def clip_gradients(parameters, max_norm):
    """torch.nn.utils.clip_grad_norm_, which takes a kernel or two per parameter where types differ, as does the norm of all."""
    by_type = {}
    for parameter in parameters:
        by_type.setdefault(parameter.dtype, []).append(parameter)
    norms = [torch.nn.utils.get_total_norm([p.grad for p in group]).float() for group in by_type.values()]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    for dtype, group in by_type.items():
        torch.nn.utils.clip_grads_with_norm_(group, max_norm, norm.to(dtype))


class Step:
    """One training step of a fresh model; `replay` runs it from a graph."""

    def __init__(self, config, batch, length):
        self.memory_before = torch.cuda.memory_allocated()
        torch.manual_seed(0)
        with torch.device("cuda"):
            self.model = Decoder(config, torch.bfloat16).to(torch.bfloat16)
            self.tokens = torch.randint(config.vocabulary, (batch, length + 1))
        if self.model.sites is not None:
            self.model.sites.float()
        self.model.compile_parts()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True,
                                           capturable=True)

    def __call__(self):
        self.optimizer.zero_grad()
        loss = self.model.loss(self.tokens[:, :-1], self.tokens[:, 1:])
        loss.backward()
        clip_gradients(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def peak_gb(self):
        torch.cuda.reset_peak_memory_stats()
        self()
        return (torch.cuda.max_memory_allocated() - self.memory_before) / 1e9

    def capture(self):
        self.optimizer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            self.loss = self()
        self.replay = graph.replay


def milliseconds(work):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def parts_of(step, replays=4):
    """Milliseconds of a step's kernels by what they are for, as the profiler saw them: means of several steps, since clocks are
    higher after the pause that the profiler makes. Prints the longest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        for _ in range(replays):
            step.replay()
        torch.cuda.synchronize()
    sums = dict.fromkeys(PARTS, 0.0)
    events = profile.key_averages()
    for event in sorted(events, key=lambda event: -event.self_device_time_total)[:30]:
        milliseconds_each = event.self_device_time_total * 1e-3 / replays
        print(f"{milliseconds_each:9.3f} ms {event.count // replays:5} times  {event.key[:100]}")
    for event in events:
        name = event.key.lower()
        part = next(part for part, words in PARTS.items() if any(word.lower() in name for word in words))
        sums[part] += event.self_device_time_total * 1e-3 / replays
    return {part: round(time, 3) for part, time in sums.items()}


def tune_published(config, positions):
    from published import paper  # which makes the benchmarks' modules known
    from shapes import Shape
    from timing import quick_time

    calls = tuple(range(1, config.sites + 1))
    paper.tune(Shape("", calls, positions, config.width, config.routing_heads), quick_time)


def prepare(scale, mode, profiled):
    """A step that can be replayed, and what is known of it but its time."""
    config = config_of(scale, mode)
    batch, length = BATCH[scale]
    if mode == "published":
        tune_published(config, batch * length)
    step = Step(config, batch, length)
    losses = [step().item() for _ in range(3)]
    peak = step.peak_gb()
    step.capture()
    for _ in range(3):
        step.replay()
    result = {"peak_gb": peak, "first_losses": losses, "last_loss": step.loss.item()}
    if profiled:
        result["parts_ms"] = parts_of(step)
    return step, result


def measure(scale, modes, repetitions, profiled):
    """Results by mode. The modes' steps take turns, so that a change of the clocks meets all of them."""
    steps, results = {}, {}
    for mode in modes:
        start = time.perf_counter()
        try:
            steps[mode], results[mode] = prepare(scale, mode, profiled)
        except (torch.OutOfMemoryError, ImportError, NotImplementedError, RuntimeError) as error:
            results[mode] = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        gc.collect()
        torch.cuda.empty_cache()
        print(scale, mode, results[mode], f"in {time.perf_counter() - start:.0f} s", flush=True)
    times = [{mode: milliseconds(step.replay) for mode, step in steps.items()} for _ in range(repetitions)]
    for mode in steps:
        results[mode]["ms"] = statistics.median(time[mode] for time in times)
        print(f"{scale} {mode} {results[mode]['ms']:.2f} ms", flush=True)
    return results


# Names in the result file of what measures are called here.
NAMES = {"plain": "plain", "router": "mhar", "fused": "mhar_fused", "call": "mhar_call", "formula": "formula",
         "published": "paper"}


def earlier(path):
    """What the file holds already: scales and modes that are not measured now keep their numbers, which bear a date."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {"scales": {}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the JSON file to write, or to bring up to date")
    parser.add_argument("--scales", nargs="+", default=list(PAPER), choices=list(PAPER))
    parser.add_argument("--modes", nargs="+", default=["plain", "router", "published"], choices=list(NAMES))
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--profile", action="store_true", help="also where the time goes")
    options = parser.parse_args()
    torch.cuda.set_stream(torch.cuda.Stream())
    # Every mode of every scale compiles the same functions again; past the usual limit they would run uncompiled.
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    document = earlier(options.out) | {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for scale in options.scales:
        batch, length = BATCH[scale]
        entry = document["scales"].setdefault(scale, {}) | {"batch": batch, "length": length}
        document["scales"][scale] = entry
        results = measure(scale, options.modes, options.repetitions, options.profile)
        gc.collect()
        torch.cuda.empty_cache()
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        for mode, result in results.items():
            for key, value in ({"date": now} | result).items():
                entry[f"{NAMES[mode]}_{key}"] = value
        for name in NAMES.values():
            if name != "plain" and f"{name}_ms" in entry and "plain_ms" in entry:
                entry[f"{name}_over_plain"] = entry["plain_ms"] / entry[f"{name}_ms"]
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
