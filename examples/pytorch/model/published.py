# SPDX-License-Identifier: Apache-2.0
"""Full mode by the paper's algorithm: rows in one buffer, saved weights, one float32 sum of gradients that every call's
backward reads and writes. The kernels and their launches are bench/peers/paper.py."""
import pathlib
import sys

import torch

from residual import History

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "bench" / "peers"))
import paper  # noqa: E402


class _Write(torch.autograd.Function):
    """Copies a row into the buffer. What it returns stands for all rows so far: reads and writes that take it run their
    backward before this one, so the row's sum is complete when it is handed out."""

    @staticmethod
    def forward(ctx, y, before, pass_, n):
        ctx.pass_, ctx.n, ctx.shape = pass_, n, y.shape
        pass_.buffer[n].copy_(y.reshape(pass_.buffer.shape[1:]))
        return y.new_empty(0)

    @staticmethod
    def backward(ctx, _):
        row = ctx.pass_.sums[ctx.n]
        return row.to(ctx.pass_.buffer.dtype).view(ctx.shape), row.new_empty(0, dtype=ctx.pass_.buffer.dtype), None, None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx, before, query, norm_weight, pass_, num_rows):
        out, weights = paper.forward(pass_.buffer[:num_rows], query, norm_weight, pass_.num_heads)
        ctx.save_for_backward(query, norm_weight, weights)
        ctx.pass_, ctx.num_rows = pass_, num_rows
        return out

    @staticmethod
    def backward(ctx, gradient):
        query, norm_weight, weights = ctx.saved_tensors
        pass_, n = ctx.pass_, ctx.num_rows
        last = n == len(pass_.buffer)
        if last:
            pass_.sums = torch.empty_like(pass_.buffer, dtype=torch.float32)
        parameters = paper.backward(pass_.buffer[:n], query, norm_weight, gradient.contiguous(), weights, pass_.sums[:n],
                                    adds=not last)
        return gradient.new_empty(0), *parameters, None, None


class Published(History):
    def __init__(self, model, embedding):
        self.sites = list(zip(model.sites.query.unbind(), model.sites.norm_weight.unbind()))
        self.num_heads = model.config.routing_heads
        self.shape = embedding.shape
        self.buffer = embedding.new_empty(len(self.sites), embedding.numel() // embedding.shape[-1], embedding.shape[-1])
        self.sums = None
        self.written = 0
        self.token = embedding.new_empty(0, requires_grad=True)
        self.write(embedding)

    def read(self, i):
        return _Read.apply(self.token, *self.sites[i], self, self.written).view(self.shape)

    def write(self, y):
        self.token = _Write.apply(y, self.token, self, self.written)
        self.written += 1
