# SPDX-License-Identifier: Apache-2.0
"""The operator as one writes it in PyTorch, differentiated by autograd; in float64 it is what every peer is checked against."""
import functools

import torch

EPS = 1e-6


def attend(rows, query, norm_weight, num_heads):
    """rows [N, P, d], query [d], norm_weight [d] -> [P, d].

    Statistics and softmax are float32 for 16-bit rows, keys and both products have the rows' type: the usual RMSNorm of a model
    in bfloat16 followed by two einsums.
    """
    wide = rows if rows.dtype == torch.float64 else rows.float()
    inverse_rms = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    keys = (wide * inverse_rms).to(rows.dtype) * norm_weight
    logits = torch.einsum("nphk,hk->nph", _heads(keys, num_heads), _heads(query, num_heads))
    weights = torch.softmax(logits, 0, dtype=wide.dtype).to(rows.dtype)
    return torch.einsum("nph,nphk->phk", weights, _heads(rows, num_heads)).flatten(-2)


def attend_in_sums(rows, query, norm_weight, num_heads):
    """The same with both products as multiplications and sums, for torch.compile: it fuses these with everything else and hands
    einsums to a library. 24 rows of [1024, 1024] forward and backward on an H200: 0.23 against 0.37 ms compiled, but 1.77 against
    1.52 ms eager."""
    wide = rows if rows.dtype == torch.float64 else rows.float()
    keys = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(rows.dtype) * norm_weight
    logits = (_heads(keys, num_heads) * _heads(query, num_heads)).sum(-1, dtype=wide.dtype)
    weights = torch.softmax(logits, 0).unsqueeze(-1)
    return (weights * _heads(wide, num_heads)).sum(0).to(rows.dtype).flatten(-2)


def _heads(tensor, num_heads):
    return tensor.unflatten(-1, (num_heads, -1))


@functools.lru_cache(1)
def compiled(extent, dynamic):
    """attend_in_sums under torch.compile for one [P, d] and H: for one number of rows or, since a chain has up to 193 of them,
    once for all numbers but one, which torch.compile insists on compiling for itself."""
    torch._dynamo.reset()
    function = torch.compile(attend_in_sums, dynamic=None if dynamic else False)

    def call(rows, query, norm_weight, num_heads):
        if dynamic and len(rows) == 1:
            return attend(rows, query, norm_weight, num_heads)
        if dynamic:
            torch._dynamo.mark_dynamic(rows, 0)
        return function(rows, query, norm_weight, num_heads)

    return call
