# SPDX-License-Identifier: Apache-2.0
"""How sublayers are connected: what each one reads from the depth history, and where its output goes.

A history is made of the embedding for one forward pass. `read(i)` is what the norm of sublayer i reads, `write(y)` takes the
output of the sublayer that read last, `write_linear(x, weight)` the two factors of that output. Which program does the mixing
is a separate choice, `routing`:

  formula    PyTorch, differentiated by autograd (formula.py)
  call       mhar_torch.route, one call at a time
  router     mhar_torch.Router, all calls of a pass together; full mode
  published  the paper's algorithm in Triton (published.py); full mode, on CUDA
"""
import torch
from torch import nn
from torch.nn import functional as F

import formula


class Sites(nn.Module):
    """What the routing calls of a pass learn, stacked. Queries, null sources and gates start at zero: a full or block model then
    averages its sources, and a delta model is the plain model."""

    def __init__(self, config):
        super().__init__()
        filled = lambda value, *shape: nn.Parameter(torch.full((config.sites, *shape), value))
        self.query = filled(0.0, config.width)
        self.norm_weight = filled(1.0, config.width)
        if config.mode == "delta":
            self.null_source = filled(0.0, config.width)
            self.gate = filled(0.0, 1)


def make_sites(config):
    if config.fused_norms and (config.mode, config.routing) != ("full", "router"):
        raise ValueError("norms are fused with a router, in full mode")
    if config.mode == "plain":
        return None
    if config.mode != "full" and config.routing in ("router", "published"):
        raise ValueError(f"routing {config.routing} is for full mode, not for {config.mode}")
    if config.routing == "router":
        from mhar_torch import Router  # needs the built extension

        # The same parameters under the same names.
        return Router(config.sites - 1, config.width, config.routing_heads, eps=config.eps, reuse_rows=True,
                      output_norm=config.fused_norms, output_norm_eps=config.eps)
    return Sites(config)


class History:
    def write_linear(self, x, weight):
        self.write(F.linear(x, weight.to(x.dtype)))

    def gradient_place(self, i):
        """Where a norm writes the gradient of what it reads; routing that has no such place takes it from autograd."""
        return None


class Calls(History):
    """Routing by single calls over a list of rows."""

    def __init__(self, model, embedding):
        self.config = model.config
        parameters = dict(model.sites.named_parameters())
        self.sites = [dict(zip(parameters, values)) for values in zip(*(p.unbind() for p in parameters.values()))]
        self.rows = [embedding]
        self.route = formula.route
        if self.config.routing == "call":
            from mhar_torch import route  # needs the built extension

            self.route = route

    def mix(self, i, rows, partial=None):
        return self.route(rows, num_heads=self.config.routing_heads, partial=partial, eps=self.config.eps, **self.sites[i])


class Full(Calls):
    """Rows are the embedding and every output; there is no residual stream."""

    def read(self, i):
        return self.mix(i, self.rows)

    def write(self, y):
        self.rows.append(y)


class Block(Calls):
    """Rows are the embedding and the sums of finished blocks; the running sum of a block is one more row for its own calls."""

    def __init__(self, model, embedding):
        super().__init__(model, embedding)
        self.running = None
        self.written = 0

    def read(self, i):
        return self.mix(i, self.rows if self.running is None else [*self.rows, self.running])

    def write(self, y):
        self.running = y if self.running is None else self.running + y
        self.written += 1
        if self.written % self.config.block == 0:
            self.rows.append(self.running)
            self.running = None


class Delta(Block):
    """The plain residual stream h stays; a sublayer reads h + gate * mix with a mix of a null source and the sums of finished
    blocks, and the final norm reads h. With a gate of zero every number is the plain model's."""

    def __init__(self, model, embedding):
        super().__init__(model, embedding)
        self.h = embedding
        self.rows = []

    def read(self, i):
        return self.mix(i, self.rows, partial=self.h) if i < len(self.sites) else self.h

    def write(self, y):
        self.h = self.h + y
        super().write(y)


def begin(model, embedding):
    """The history of a pass of this model."""
    config = model.config
    if config.routing == "router":
        return model.sites.begin(embedding)
    if config.routing == "published":
        from published import Published

        return Published(model, embedding)
    return {"full": Full, "block": Block, "delta": Delta}[config.mode](model, embedding)
