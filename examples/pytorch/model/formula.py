# SPDX-License-Identifier: Apache-2.0
"""A routing call as one writes it in PyTorch: what the operators of this library compute, for reading and for comparison."""
import torch


def depth_weights(rows, query, num_heads, norm_weight, eps=1e-6):
    """Rows [N, ..., d] -> one softmax over N per position and head, [N, ..., H]."""
    keys = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
    logits = (keys * (query * norm_weight)).unflatten(-1, (num_heads, -1)).sum(-1)
    return torch.softmax(logits, 0)


def route(rows, query, num_heads, *, norm_weight, null_source=None, partial=None, gate=None, eps=1e-6):
    """The mix of a list of rows [..., d]; arithmetic in float32 at least, one rounding at the end."""
    like = partial if partial is not None else rows[0]
    sources = list(rows) if null_source is None else [null_source.expand_as(like), *rows]
    wide = torch.promote_types(like.dtype, torch.float32)
    stacked = torch.stack([source.to(wide) for source in sources])
    weights = depth_weights(stacked, query, num_heads, norm_weight, eps)
    out = (weights.unsqueeze(-1) * stacked.unflatten(-1, (num_heads, -1))).sum(0).flatten(-2)
    if gate is not None:
        out = gate * out
    if partial is not None:
        out = partial + out
    return out.to(like.dtype)
