# SPDX-License-Identifier: Apache-2.0
"""Kernels of other projects for one head, where these are installed: what a user who needs no more would pick."""
import torch

from einsum import EPS


def _liger():
    from liger_kernel.transformers.functional import liger_attn_res

    return lambda rows, query, norm_weight, num_heads: liger_attn_res(torch.stack(rows), query, norm_weight, EPS)


def _fla():
    from fla.ops.attnres import fused_attnres

    # It can keep the mix for the backward, as ours is given it, instead of making it again.
    return lambda rows, query, norm_weight, num_heads: fused_attnres(query, rows, norm_weight, rms_eps=EPS,
                                                                     checkpoint_level=0)


def single_head_peers():
    """Name to attend(list of rows, query, norm_weight, 1) of every project that is installed."""
    found = {}
    for name, load in (("liger", _liger), ("fla", _fla)):
        try:
            found[name] = load()
        except ImportError:
            pass
    return found
