# SPDX-License-Identifier: Apache-2.0
"""Whole models through the router against the same models in eager PyTorch."""
import unittest

try:
    import torch
    from torch.utils.checkpoint import checkpoint

    from mhar_torch import Router
except (ImportError, StopIteration) as reason:
    raise unittest.SkipTest(f"PyTorch or the built extension is missing: {reason}")

SITES, WIDTH, HEADS, SHAPE = 5, 24, 4, (2, 3)


def mix(rows, query, norm_weight, eps, heads):
    s = torch.stack(rows)
    keys = s * torch.rsqrt(s.square().mean(-1, keepdim=True) + eps) * norm_weight
    logits = (keys * query).unflatten(-1, (heads, -1)).sum(-1)
    weights = torch.softmax(logits, 0).unsqueeze(-1)
    return (weights * s.unflatten(-1, (heads, -1))).sum(0).flatten(-2)


def eager(router, embedding, sublayers):
    """The model without the router, on the router's parameters."""
    def read(site):
        y = mix(rows, router.query[site], router.norm_weight[site], router.eps, router.heads)
        if router.output_norm:
            y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + router.output_norm_eps)
            y = y * router.output_norm_weight[site]
        return y

    rows = [embedding]
    for site, sublayer in enumerate(sublayers):
        rows.append(sublayer(read(site)))
    return read(len(sublayers))


def model(dtype=torch.float64, device="cpu", **options):
    """A router that does not average, its sublayers and an embedding."""
    torch.manual_seed(3)
    router = Router(SITES, WIDTH, HEADS, device=device, parameter_dtype=dtype, eps=1e-3, **options)
    with torch.no_grad():
        for parameter in router.parameters():
            parameter.add_(torch.randn_like(parameter))
    sublayers = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
        for _ in range(SITES)).to(device=device, dtype=dtype)
    embedding = torch.randn(*SHAPE, WIDTH, dtype=dtype, device=device, requires_grad=True)
    return router, sublayers, embedding


def gradients(y, *modules):
    leaves = [leaf for module in modules for leaf in
              ([module] if isinstance(module, torch.Tensor) else module.parameters())]
    return torch.autograd.grad(y.square().sum() + y[..., 0].sum(), leaves, retain_graph=True)


class RouterTest(unittest.TestCase):
    def test_values_and_gradients(self):
        for options in ({}, {"output_norm": True}, {"reuse_rows": True}):
            parts = model(**options)
            router, sublayers, embedding = parts
            mine = router(embedding, sublayers)
            theirs = eager(router, embedding, sublayers)
            torch.testing.assert_close(mine, theirs)
            for a, b in zip(gradients(mine, *parts), gradients(theirs, *parts)):
                torch.testing.assert_close(a, b)


if __name__ == "__main__":
    unittest.main()
