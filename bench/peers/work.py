# SPDX-License-Identifier: Apache-2.0
"""Inputs of the measured work, and the work as autograd does it."""
from dataclasses import dataclass

import torch

from shapes import DELTA_CALLS


@dataclass
class Inputs:
    """Tensors of their own for every row: views of one leaf would make autograd pay for the whole of it again and again."""

    rows: list
    upstream: list
    queries: list
    norm_weights: list

    def map(self, function, matrix_function=None):
        """A copy with every tensor mapped; rows and upstream by another function."""
        matrix_function = matrix_function or function
        return Inputs([matrix_function(x) for x in self.rows], [matrix_function(x) for x in self.upstream],
                      [function(x) for x in self.queries], [function(x) for x in self.norm_weights])


def make_inputs(shape, device, dtype=torch.bfloat16):
    """Normal rows; queries so long that logits have a deviation of 1.6 and reach about 4: neither uniform nor saturated.
    Parameters are drawn in the rows' type, so that peers which keep them wider hold the same numbers."""
    generator = torch.Generator(device).manual_seed(1)

    def normal(*extent, scale=1.0, mean=0.0):
        return (torch.randn(extent, generator=generator, device=device) * scale + mean).to(dtype)

    matrix = (shape.num_positions, shape.width)
    deviation = 1.6 / (shape.width // shape.num_heads) ** 0.5
    calls = range(len(shape.num_rows))
    return Inputs([normal(*matrix) for _ in range(shape.num_rows[-1])], [normal(*matrix) for _ in calls],
                  [normal(shape.width, scale=deviation) for _ in calls],
                  [normal(shape.width, scale=0.1, mean=1.0) for _ in calls])


class AutogradChain:
    """Every call stacks its rows, or gathers them otherwise, and attends to them; all gradients from one backward."""

    def __init__(self, shape, inputs, attend, gather=torch.stack):
        self.shape = shape
        self.attend = attend
        self.gather = gather
        self.inputs = inputs.map(lambda x: x.detach().requires_grad_())
        self.upstream = inputs.upstream

    def forward(self):
        x = self.inputs
        self.outputs = [self.attend(self.gather(x.rows[:n]), q, g, self.shape.num_heads)
                        for n, q, g in zip(self.shape.num_rows, x.queries, x.norm_weights)]

    def backward(self, retain=False):
        """`retain` keeps what the forward saved for another backward."""
        x = self.inputs
        self.gradients = torch.autograd.grad(self.outputs, [*x.rows, *x.queries, *x.norm_weights], self.upstream,
                                             retain_graph=retain)
        if not retain:
            self.outputs = [y.detach() for y in self.outputs]

    def run_once(self):
        self.forward()
        self.backward()

    def release(self):
        self.outputs = self.gradients = None


class DeltaCalls:
    """delta8B: per call the rows and a null source are stacked and attended to, the mix is added to a partial sum and gated;
    forward of all calls, then per call forward again and backward into the rows' gradients. All calls use the same tensors;
    factors are powers of two, so that they are the same in any type."""

    def __init__(self, shape, inputs, attend_and_add):
        self.shape = shape
        self.attend_and_add = attend_and_add
        self.upstream = inputs.upstream
        self.partial = inputs.upstream[0].roll(1, 1)
        leaf = lambda x: x.detach().clone().requires_grad_()
        self.rows = [leaf(row) for row in inputs.rows]
        self.query, self.norm_weight = leaf(inputs.queries[0]), leaf(inputs.norm_weights[0])
        self.null_source = leaf(inputs.rows[0][0] / 8)
        self.gate = leaf(inputs.queries[0].new_full((1,), 0.5))

    def call(self):
        sources = torch.stack([self.null_source.expand_as(self.partial), *self.rows])
        routed = self.attend_and_add(sources, self.query, self.norm_weight, self.shape.num_heads, self.partial)
        return (1 - self.gate) * self.partial + self.gate * routed

    def run(self, num_calls=DELTA_CALLS):
        with torch.no_grad():
            for _ in range(num_calls):
                self.call()
        for _ in range(num_calls):
            out = self.call()
            out.backward(self.upstream[0])
        self.outputs = [out.detach()]

    def run_once(self):
        self.run(1)

    def release(self):
        """Gradients stay: calls add to them."""
        self.outputs = None

    @property
    def gradients(self):
        """But for the gate's, which autograd makes as a difference of two sums over everything."""
        leaves = (*self.rows, self.query, self.norm_weight, self.null_source)
        return [leaf.grad for leaf in leaves]
