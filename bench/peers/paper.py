# SPDX-License-Identifier: Apache-2.0
"""Launches of the published algorithm: one call, a chain over a shared buffer with a float gradient accumulator, and the
self-contained call of delta mode."""
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import torch
import triton

from einsum import EPS
from paper_kernels import backward_kernel, forward_kernel

DEFAULT = {"POSITIONS": 1, "STAGES": 1, "num_warps": 4}
_chosen = {}  # (kernel, P, d, H) -> meta-parameters


def _launch(kernel, extent, meta, *arguments, warmup=False, **options):
    num_positions, width, num_heads = extent
    head_width = width // num_heads
    kernel.run(*arguments, num_positions, EPS, HEADS=num_heads, HEAD_WIDTH=head_width,
               LANES=triton.next_power_of_2(head_width), **options, **meta, warmup=warmup,
               grid=(triton.cdiv(num_positions, meta["POSITIONS"]),))


def forward(rows, query, norm_weight, num_heads, partial=None, saves=True, meta=None, **how):
    """rows [N, P, d] -> output [P, d] and, when it saves, weights [N, P, H] in float32."""
    num_rows, *extent = rows.shape
    meta = meta or _chosen.get((forward_kernel, *extent, num_heads), DEFAULT)
    out = torch.empty_like(rows[0])
    weights = rows.new_empty((num_rows, extent[0], num_heads), dtype=torch.float32) if saves else out
    _launch(forward_kernel, (*extent, num_heads), meta, rows, query, norm_weight, out if partial is None else partial, out,
            weights, num_rows, SAVES=saves, ADDS_PARTIAL=partial is not None, **how)
    return out, weights


def backward(rows, query, norm_weight, out_gradient, weights, row_gradients, adds, meta=None, **how):
    """Stores or adds the gradients of rows [N, P, d]; returns those of query and norm weight."""
    num_rows, *extent = rows.shape
    num_heads = weights.shape[-1]
    meta = meta or _chosen.get((backward_kernel, *extent, num_heads), DEFAULT)
    partial_sums = rows.new_empty((triton.cdiv(extent[0], meta["POSITIONS"]), extent[1]), dtype=torch.float32)
    _launch(backward_kernel, (*extent, num_heads), meta, rows, query, norm_weight, out_gradient, weights, row_gradients,
            partial_sums, num_rows, ADDS=adds, **how)
    folded = partial_sums.sum(0)
    return folded * norm_weight, folded * query


def tune(shape, time):
    """Chooses the fastest meta-parameters of both kernels at the median call of a shape and returns them; `time` measures a
    function. Candidates give a thread 8 to 32 elements and are compiled side by side. Four positions per program never won."""
    extent = (shape.num_positions, shape.width)
    heads = shape.num_heads
    if (backward_kernel, *extent, heads) in _chosen:
        return chosen(shape)
    num_rows = shape.num_rows[len(shape.num_rows) // 2]
    sums_float = len(shape.num_rows) > 1
    rows = torch.randn((num_rows, *extent), device="cuda").bfloat16()
    query = torch.randn(extent[1], device="cuda") / heads
    gradients = torch.zeros_like(rows, dtype=torch.float32 if sums_float else rows.dtype)
    weights = forward(rows, query, query, heads)[1]
    runs = {
        forward_kernel: lambda **how: forward(rows, query, query, heads, **how),
        backward_kernel: lambda **how: backward(rows, query, query, rows[0], weights, gradients, sums_float, **how),
    }
    tile = heads * triton.next_power_of_2(extent[1] // heads)
    metas = [{"POSITIONS": positions, "STAGES": stages, "num_warps": warps}
             for positions, stages, warps in product((1, 2), (1, 3), (1, 2, 4, 8, 16, 32))
             if positions <= extent[0] and 8 <= positions * tile // (32 * warps) <= 32]
    with triton.AsyncCompileMode(ThreadPoolExecutor(), ignore_errors=True):
        for run, meta in product(runs.values(), metas):
            run(meta=meta, warmup=True)
    for kernel, run in runs.items():
        _chosen[(kernel, *extent, heads)] = min(metas, key=lambda meta: _time_or_never(time, run, meta))
    return chosen(shape)


def chosen(shape):
    return {kernel.__name__: _chosen[(kernel, shape.num_positions, shape.width, shape.num_heads)]
            for kernel in (forward_kernel, backward_kernel)}


def _time_or_never(time, run, meta):
    try:
        return time(lambda: run(meta=meta))
    except triton.runtime.OutOfResources:
        return float("inf")


class PaperChain:
    """Calls over one shared buffer. What is saved is the weights; row gradients are summed in float32 and handed out in the
    rows' type once no call is left that adds to them. A single call stores them in the rows' type at once."""

    def __init__(self, shape, inputs):
        self.shape = shape
        self.rows = torch.stack(inputs.rows)
        self.upstream = inputs.upstream
        self.parameters = [(q.float(), g.float()) for q, g in zip(inputs.queries, inputs.norm_weights)]

    def forward(self):
        saved = [forward(self.rows[:n], *parameters, self.shape.num_heads)
                 for n, parameters in zip(self.shape.num_rows, self.parameters)]
        self.outputs, self.weights = zip(*saved)

    def backward(self, retain=True):
        """What the forward saved is kept in any case."""
        counts = self.shape.num_rows
        single = len(counts) == 1
        sums = torch.empty_like(self.rows, dtype=None if single else torch.float32)
        row_gradients = [None] * counts[-1]
        parameter_gradients = []
        for c in reversed(range(len(counts))):
            n = counts[c]
            parameter_gradients.append(backward(self.rows[:n], *self.parameters[c], self.upstream[c], self.weights[c], sums[:n],
                                                adds=c + 1 < len(counts)))
            for done in range(counts[c - 1] if c > 0 else 0, n):
                row_gradients[done] = sums[done].to(self.rows.dtype)
        queries, norm_weights = zip(*reversed(parameter_gradients))
        self.gradients = [*row_gradients, *queries, *norm_weights]

    def run_once(self):
        self.forward()
        self.backward()

    def release(self):
        self.outputs = self.weights = self.gradients = None


class PaperCall(torch.autograd.Function):
    """attend(rows) + partial with gradients of its own, as delta mode uses it."""

    @staticmethod
    def forward(ctx, rows, query, norm_weight, num_heads, partial):
        out, weights = forward(rows, query, norm_weight, num_heads, partial)
        ctx.save_for_backward(rows, query, norm_weight, weights)
        return out

    @staticmethod
    def backward(ctx, out_gradient):
        rows, query, norm_weight, weights = ctx.saved_tensors
        row_gradients = torch.empty_like(rows)
        parameters = backward(rows, query, norm_weight, out_gradient, weights, row_gradients, adds=False)
        return row_gradients, *parameters, None, None
