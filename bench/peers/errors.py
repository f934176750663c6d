# SPDX-License-Identifier: Apache-2.0
"""Errors against float64 at full size: do is zero but at a few positions, so that sums over positions are sums over these few
and the same work in float64 needs no others."""
import math

import torch

NUM_POSITIONS = 32  # as bench/accuracy.cu


def errors_of(work, shape, inputs, exact_work):
    """work runs on inputs as they are, exact_work(inputs) makes the same work of float64 inputs.

    output_error is the largest difference relative to the largest element of an output, gradient_error_max that of a gradient;
    gradient_error is the geometric mean over all gradients: of every row, query and norm weight.
    """
    step = max(1, shape.num_positions // NUM_POSITIONS)
    chosen = slice(0, step * NUM_POSITIONS, step)
    work.upstream = [torch.zeros_like(do) for do in inputs.upstream]
    for masked, do in zip(work.upstream, inputs.upstream):
        masked[chosen] = do[chosen]
    work.run_once()
    work.upstream = inputs.upstream

    exact = exact_work(inputs.map(lambda x: x.double(), lambda x: x[chosen].double()))
    exact.run_once()
    at_chosen = lambda x: x[chosen] if x.dim() == 2 else x
    outputs = [_error(at_chosen(x), y) for x, y in zip(work.outputs, exact.outputs)]
    gradients = [_error(at_chosen(x), y) for x, y in zip(work.gradients, exact.gradients)]
    gradients = [e for e in gradients if e is not None]
    return {"output_error": max(outputs), "gradient_error_max": max(gradients),
            "gradient_error": math.exp(sum(math.log(max(e, 1e-300)) for e in gradients) / len(gradients))}


def _error(actual, expected):
    """None where all of the exact gradient is zero: q and g of a call with one row."""
    largest = expected.abs().max().item()
    difference = (actual.double() - expected).abs().max().item()
    if largest == 0:
        assert difference == 0, "a gradient that is zero is not"
        return None
    return difference / largest if difference == difference else math.inf
