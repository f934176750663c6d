# SPDX-License-Identifier: Apache-2.0
"""The operator of one routing call: shapes for the compiler, the gradient, and default options."""
from pathlib import Path

import torch
from torch.autograd import forward_ad

torch.ops.load_library(next(Path(__file__).parent.glob("_operators*.so")))

ROUNDING = {"none": 0, "storage": 1, "storage_twice": 2}
# Where query, norm_weight, bias, null_source, partial, gate and output_norm_weight stand among the
# operator's inputs after `rows`: the order of route_backward's results.
_PLACES = (0, 2, 3, 4, 5, 6, 8)


@torch.library.register_fake("mhar::route")
def _(rows, query, num_heads, norm_weight, bias, null_source, partial, gate, output_norm,
      output_norm_weight, scale, eps, output_norm_eps, rounding):
    like = rows[0] if rows else partial
    if like is None:
        raise RuntimeError("mhar: a call without rows needs a partial for its shape")
    # A tensor on "meta" among others brings a call with numbers here, where none are computed.
    for tensor in (*rows, query, norm_weight, bias, null_source, partial, gate,
                   output_norm_weight):
        if tensor is not None and tensor.device != like.device:
            raise RuntimeError(f"mhar: tensors on {tensor.device} and {like.device} in one call")
    keeps_mix = partial is not None or gate is not None or output_norm
    lse_type = torch.float64 if like.dtype == torch.float64 else torch.float32
    y = like.new_empty(like.shape)
    lse = like.new_empty((*like.shape[:-1], num_heads), dtype=lse_type)
    mix = like.new_empty(like.shape if keeps_mix else (0,))
    combined = like.new_empty(like.shape if output_norm else (0,))
    return y, lse, mix, combined


@torch.library.register_fake("mhar::route_backward")
def _(dy, rows, query, num_heads, norm_weight, bias, null_source, partial, gate, output_norm,
      output_norm_weight, scale, eps, output_norm_eps, rounding, lse, mix, combined, wanted):
    inputs = [*rows, query, norm_weight, bias, null_source, partial, gate, output_norm_weight]
    inputs = [query if tensor is None else tensor for tensor in inputs]
    return [tensor.new_empty(tensor.shape if want else (0,))
            for tensor, want in zip(inputs, wanted)]


def _save(ctx, inputs, output):
    rows, *site = inputs
    _, lse, mix, combined = output
    # What the backward needs besides y is private to the operator: nothing else may use it.
    ctx.mark_non_differentiable(lse, mix, combined)
    ctx.num_rows = len(rows)
    ctx.site = [None if isinstance(value, torch.Tensor) else value for value in site]
    ctx.tensor_places = [i for i, value in enumerate(site) if isinstance(value, torch.Tensor)]
    ctx.save_for_backward(*rows, *(site[i] for i in ctx.tensor_places), lse, mix, combined)


def _backward(ctx, dy, *_):
    saved = list(ctx.saved_tensors)
    rows, rest = saved[: ctx.num_rows], saved[ctx.num_rows:]
    site = list(ctx.site)
    for place in ctx.tensor_places:
        site[place] = rest.pop(0)
    lse, mix, combined = rest
    needs_rows, *needs = ctx.needs_input_grad
    wanted = [*needs_rows, *(needs[place] for place in _PLACES)]
    out = torch.ops.mhar.route_backward(dy, rows, *site, lse, mix, combined, wanted)
    out = [gradient if want else None for gradient, want in zip(out, wanted)]
    gradients = [None] * len(site)
    for place, gradient in zip(_PLACES, out[len(rows):]):
        gradients[place] = gradient
    return (out[: len(rows)], *gradients)


def _refuse(ctx, *_):
    raise RuntimeError("mhar: route has no second derivative; "
                       "do not call backward with create_graph=True through it")


torch.library.register_autograd("mhar::route", _backward, setup_context=_save)
torch.library.register_autograd("mhar::route_backward", _refuse)


def _refuse_tangents(tensors):
    # Where no input requires a gradient, torch would drop tangents and answer zeros.
    for tensor in tensors:
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise RuntimeError("mhar: route has no forward-mode derivative")


def route(rows, query, num_heads=1, *, norm_weight=None, bias=None, null_source=None,
          partial=None, gate=None, output_norm=False, output_norm_weight=None, scale=1.0,
          eps=1e-6, output_norm_eps=1e-6, rounding="none", return_lse=False):
    """Mixes `rows` by a softmax over depth, one per position and head.

    rows     a list of [..., d] tensors of one shape and type, or a stacked [N, ..., d] tensor
    query    [d]; zeros give the average
    partial  [..., d], added to gate * mix
    Returns [..., d] in the rows' type, and with `return_lse` also the log-sum-exp [..., H], which
    has no gradient. Gradients come in the type of what they belong to.
    """
    rows = rows.unbind(0) if isinstance(rows, torch.Tensor) else list(rows)
    if rounding not in ROUNDING:
        raise ValueError(f"mhar: rounding is one of {', '.join(ROUNDING)}, not {rounding!r}")
    if forward_ad._current_level >= 0:
        _refuse_tangents((*rows, query, norm_weight, bias, null_source, partial, gate,
                          output_norm_weight))
    y, lse, _, _ = torch.ops.mhar.route(
        rows, query, num_heads, norm_weight, bias, null_source, partial, gate, output_norm,
        output_norm_weight, scale, eps, output_norm_eps, ROUNDING[rounding])
    return (y, lse) if return_lse else y
