# SPDX-License-Identifier: Apache-2.0
"""The norm in front of a sublayer, whose backward can leave its gradient where the router will read it."""
import torch
from torch.nn import functional as F


class _NormInPlace(torch.autograd.Function):
    """As torch.nn.functional.rms_norm, in operations that torch.compile fuses with what is around them."""

    @staticmethod
    def forward(ctx, x, weight, eps, place, in_place):
        wide = torch.promote_types(x.dtype, torch.float32)
        inverse_rms = torch.rsqrt(x.to(wide).square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, inverse_rms, place, in_place)
        y = x.to(wide) * inverse_rms * weight.to(wide)
        # With PyTorch 2.11 a conversion that changes nothing, here, makes a compiled backward see no gradient.
        return y if y.dtype == x.dtype else y.to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, inverse_rms, place, in_place = ctx.saved_tensors
        wide = inverse_rms.dtype
        unit = x.to(wide) * inverse_rms
        scaled = gradient.to(wide) * weight.to(wide)
        place.copy_(inverse_rms * (scaled - unit * (scaled * unit).mean(-1, keepdim=True)))
        weight_gradient = (gradient.to(wide) * unit).reshape(-1, x.shape[-1]).sum(0)
        return in_place.expand(x.shape), weight_gradient.to(weight.dtype), None, None, None


def rms_norm(x, weight, eps, place=None):
    """RMSNorm over the last dimension of what a router's site read. With `place`, which is `Run.gradient_place(site)`, the
    backward writes its gradient there, which saves the router a copy; x must have no other reader."""
    if place is None:
        return F.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)
    return _NormInPlace.apply(x, weight, eps, *place)
