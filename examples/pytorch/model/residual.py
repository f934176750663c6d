# SPDX-License-Identifier: Apache-2.0
"""How sublayers are connected: what each one reads from the depth history, and where its output goes.

A history is made of the embedding for one forward pass. `read(i, norm)` is the normed input of sublayer i, `write(y)` takes the
output of the sublayer that read last. Which program does the mixing is a separate choice, `routing`:

  formula    PyTorch, differentiated by autograd (formula.py)
  call       mhar_torch.route, one call at a time
  router     mhar_torch.Router, all calls of a pass together; full mode
  published  the paper's algorithm in Triton (published.py); full mode, on CUDA
"""
import torch
from torch import nn

import formula


class Site(nn.Module):
    """What one routing call learns. Queries, null sources and gates start at zero: a full or block model then averages its
    sources, and a delta model is the plain model."""

    def __init__(self, config):
        super().__init__()
        self.query = nn.Parameter(torch.zeros(config.width))
        self.norm_weight = nn.Parameter(torch.ones(config.width))
        if config.mode == "delta":
            self.null_source = nn.Parameter(torch.zeros(config.width))
            self.gate = nn.Parameter(torch.zeros(1))


class Calls:
    """Routing by single calls over a list of rows."""

    def __init__(self, model, embedding):
        self.config = model.config
        self.sites = model.sites
        self.rows = [embedding]
        self.route = formula.route
        if self.config.routing == "call":
            from mhar_torch import route  # needs the built extension

            self.route = route

    def mix(self, i, rows, **options):
        site = self.sites[i]
        return self.route(rows, site.query, self.config.routing_heads, norm_weight=site.norm_weight, eps=self.config.eps,
                          **options)


class Full(Calls):
    """Rows are the embedding and every output; there is no residual stream."""

    def read(self, i, norm):
        return self.mix(i, self.rows, output_norm=True, output_norm_weight=norm.weight, output_norm_eps=norm.eps)

    def write(self, y):
        self.rows.append(y)


class Blocks(Calls):
    """Rows are the embedding and the sums of finished blocks."""

    def __init__(self, model, embedding):
        super().__init__(model, embedding)
        self.running = None
        self.written = 0

    def write(self, y):
        self.running = y if self.running is None else self.running + y
        self.written += 1
        if self.written % self.config.block == 0:
            self.rows.append(self.running)
            self.running = None


class Block(Blocks):
    """The running sum of a block is one more row for the block's own calls."""

    def read(self, i, norm):
        rows = self.rows if self.running is None else [*self.rows, self.running]
        return self.mix(i, rows, output_norm=True, output_norm_weight=norm.weight, output_norm_eps=norm.eps)


class Delta(Blocks):
    """The plain residual stream h stays; a sublayer reads norm(h + gate * mix) with a mix of a null source and the rows, and
    the final norm reads h. The norm is the plain model's own: with a gate of zero every number is the plain model's."""

    def __init__(self, model, embedding):
        super().__init__(model, embedding)
        self.h = embedding

    def read(self, i, norm):
        if i == len(self.sites):
            return norm(self.h)
        site = self.sites[i]
        return norm(self.mix(i, self.rows, null_source=site.null_source, partial=self.h, gate=site.gate))

    def write(self, y):
        self.h = self.h + y
        super().write(y)


def begin(model, embedding):
    """The history of a pass of this model."""
    config = model.config
    if config.routing == "published":
        from published import Published

        return Published(model, embedding)
    return {"full": Full, "block": Block, "delta": Delta}[config.mode](model, embedding)
