# SPDX-License-Identifier: Apache-2.0
"""One call against the formula in eager PyTorch, and PyTorch's own checks of operators."""
import unittest

try:
    import torch
    from torch.utils.checkpoint import checkpoint

    from mhar_torch import route
except (ImportError, StopIteration) as reason:
    raise unittest.SkipTest(f"PyTorch or the built extension is missing: {reason}")


def eager(rows, query, num_heads, norm_weight=None, bias=None, null_source=None, partial=None,
          gate=None, output_norm=False, output_norm_weight=None, scale=1.0, eps=1e-6,
          output_norm_eps=1e-6):
    sources = list(rows)
    if null_source is not None:
        sources.insert(0, null_source.expand_as(partial if partial is not None else rows[0]))
    s = torch.stack(sources)
    w = query if norm_weight is None else query * norm_weight
    keys = s * torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
    heads = (num_heads, s.shape[-1] // num_heads)
    logits = scale * (keys * w).unflatten(-1, heads).sum(-1)
    if bias is not None:
        logits = logits + bias.view(-1, *[1] * (logits.dim() - 1))
    o = (torch.softmax(logits, 0).unsqueeze(-1) * s.unflatten(-1, heads)).sum(0).flatten(-2)
    if gate is not None:
        o = gate * o
    if partial is not None:
        o = o + partial
    if output_norm:
        o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + output_norm_eps)
        o = o if output_norm_weight is None else o * output_norm_weight
    return o


def tensor(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def every_option(n=3, shape=(2, 5), d=12, dtype=torch.float64):
    rows = [tensor(*shape, d, dtype=dtype) for _ in range(n)]
    site = dict(norm_weight=tensor(d, dtype=dtype), bias=tensor(n + 1, dtype=dtype),
                null_source=tensor(d, dtype=dtype), partial=tensor(*shape, d, dtype=dtype),
                gate=tensor(1, dtype=dtype), output_norm=True,
                output_norm_weight=tensor(d, dtype=dtype), scale=0.7, eps=1e-3,
                output_norm_eps=1e-2)
    return rows, tensor(d, dtype=dtype), site


def leaves(rows, query, site):
    return [*rows, query, *(v for v in site.values() if isinstance(v, torch.Tensor))]


class OnCpu(unittest.TestCase):
    device = "cpu"

    def setUp(self):
        torch.set_default_device(self.device)
        self.addCleanup(torch.set_default_device, None)
        torch.manual_seed(1)

    def assert_same(self, function, rows, query, site, loss=None):
        loss = loss or (lambda y: y.square().sum() + y[..., 0].sum())
        inputs = leaves(rows, query, site)
        mine = function(rows, query, 4, **site)
        theirs = eager(rows, query, 4, **site)
        torch.testing.assert_close(mine, theirs)
        for a, b in zip(torch.autograd.grad(loss(mine), inputs),
                        torch.autograd.grad(loss(theirs), inputs)):
            torch.testing.assert_close(a, b)

    def test_every_option(self):
        self.assert_same(route, *every_option())

    def test_each_option_alone(self):
        rows, query, site = every_option()
        self.assert_same(route, rows, query, {})
        for name in ("norm_weight", "partial", "gate", "output_norm"):
            self.assert_same(route, rows, query, {name: site[name]})
        self.assert_same(route, rows, query, {"bias": tensor(3)})
        self.assert_same(route, rows, query, {"null_source": site["null_source"]})
        self.assert_same(route, rows[:1], query, {})

    def test_null_source_alone(self):
        _, query, site = every_option()
        partial, null_source = site["partial"], site["null_source"]
        y = route([], query, 4, null_source=null_source, partial=partial)
        torch.testing.assert_close(y, partial + null_source)

    def test_strided_rows(self):
        base = torch.randn(5, 2, 3, 12, dtype=torch.float64)
        token_major = [base.permute(1, 0, 2, 3)[..., n, :].requires_grad_() for n in range(3)]
        self.assert_same(route, token_major, tensor(12), {})
        transposed = [tensor(12, 7).t() for _ in range(2)] + [tensor(7, 12)]
        self.assert_same(route, transposed, tensor(12), {})

    def test_stacked_rows(self):
        stacked, query = tensor(3, 2, 5, 12), tensor(12)
        route(stacked, query, 4).sum().backward()
        mine, stacked.grad = stacked.grad, None
        eager(stacked.unbind(0), query, 4).sum().backward()
        torch.testing.assert_close(mine, stacked.grad)

    def test_upstream_of_any_strides(self):
        rows, query, site = every_option()
        for loss in (torch.sum, torch.mean, lambda y: y[..., ::2].sum(), lambda y: y[0].sum(),
                     lambda y: (y.transpose(0, 1) * torch.arange(2.0).view(1, 2, 1)).sum(),
                     lambda y: (torch.cat([y, y], -1) * torch.arange(24.0)).sum()):
            self.assert_same(route, rows, query, site, loss)

    def test_gradcheck(self):
        rows, query, site = every_option(n=2, shape=(3,), d=4)
        names = [k for k, v in site.items() if isinstance(v, torch.Tensor)]
        fixed = {k: v for k, v in site.items() if k not in names}

        def call(a, b, query, *values):
            return route([a, b], query, 2, **dict(zip(names, values)), **fixed)

        self.assertTrue(torch.autograd.gradcheck(call, (*rows, query, *(site[k] for k in names))))

    def test_opcheck(self):
        rows, query, site = every_option()
        for full in (True, False):
            s = site if full else {}
            torch.library.opcheck(torch.ops.mhar.route.default, (
                rows, query, 4, s.get("norm_weight"), s.get("bias"), s.get("null_source"),
                s.get("partial"), s.get("gate"), full, s.get("output_norm_weight"), 1.0, 1e-6, 1e-6,
                0))

    def test_compiled(self):
        def call(rows, query, num_heads, **site):
            return 2 * route(rows, query, num_heads, **site)

        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        self.assert_same(lambda *a, **k: compiled(*a, **k) / 2, *every_option())

    def test_checkpointed(self):
        rows, query, site = every_option()
        inputs = leaves(rows, query, site)
        expected = torch.autograd.grad(route(rows, query, 4, **site).square().sum(), inputs)
        for reentrant in (True, False):
            for leaf in inputs:
                leaf.grad = None
            y = checkpoint(lambda *t: route(t, query, 4, **site), *rows, use_reentrant=reentrant)
            y.square().sum().backward()
            for leaf, gradient in zip(inputs, expected):
                self.assertTrue(torch.equal(leaf.grad, gradient))

    def test_types(self):
        for dtype in (torch.bfloat16, torch.float16):
            rows, query, _ = every_option(dtype=dtype)
            weight = tensor(12, dtype=torch.float32)
            with torch.autocast(self.device, dtype=torch.bfloat16):
                y = route(rows, query, 4, norm_weight=weight)
            self.assertEqual(y.dtype, dtype)
            y.float().sum().backward()
            self.assertEqual((rows[0].grad.dtype, query.grad.dtype, weight.grad.dtype),
                             (dtype, dtype, torch.float32))
            exact = eager([r.double() for r in rows], query.double(), 4,
                          norm_weight=weight.double())
            torch.testing.assert_close(y, exact.to(dtype), rtol=2**-7, atol=1e-3)

    def test_query_is_not_rounded(self):
        query = torch.tensor([1.001953125, -1.0]).repeat(256)
        rows = [torch.ones(1, 512, dtype=torch.bfloat16), torch.zeros(1, 512, dtype=torch.bfloat16)]
        self.assertTrue((route(rows, query) == 0.62109375).all())

    def test_empty(self):
        rows, query = [tensor(0, 5, 12) for _ in range(2)], tensor(12)
        y = route(rows, query, 4)
        y.sum().backward()
        self.assertEqual((y.shape, rows[0].grad.shape), ((0, 5, 12), (0, 5, 12)))
        self.assertTrue((query.grad == 0).all())

    def test_lse(self):
        rows, _, _ = every_option()
        _, lse = route(rows, torch.zeros(12, dtype=torch.float64), 4, return_lse=True)
        torch.testing.assert_close(lse, torch.full_like(lse, 3.0).log())
        self.assertFalse(lse.requires_grad)

    def test_refusals(self):
        rows, query, _ = every_option()
        for arguments, said in ((dict(num_heads=5), "heads"), (dict(num_heads=0), "heads"),
                                (dict(bias=tensor(2)), "bias"), (dict(eps=-1.0), "eps"),
                                (dict(rounding="half"), "rounding is one of none, storage")):
            with self.assertRaisesRegex((RuntimeError, ValueError), said):
                route(rows, query, **arguments)
        with self.assertRaisesRegex(RuntimeError, "rows differ"):
            route([rows[0], rows[1].float()], query)

    def test_lse_of_another_call_is_refused(self):
        rows, query, _ = every_option()
        rows, query = [row.detach() for row in rows], query.detach()
        site = (4, None, None, None, None, None, False, None, 1.0, 1e-6, 1e-6, 0)
        y, lse, mix, combined = torch.ops.mhar.route(rows, query, *site)
        for wrong in (lse[:1], lse.float()):
            with self.assertRaisesRegex(RuntimeError, "lse of"):
                torch.ops.mhar.route_backward(y, rows, query, *site, wrong, mix, combined,
                                              [True] * 4 + [False] * 6)

    def test_tensors_without_numbers_are_refused(self):
        rows, query, site = every_option()
        for name in ("norm_weight", "bias", "null_source", "partial", "gate"):
            with self.assertRaisesRegex(RuntimeError, "tensors on meta and"):
                route(rows, query, **{name: site[name].to("meta")})
        with self.assertRaisesRegex(RuntimeError, "tensors on meta and"):
            route(rows, query.to("meta"))

    def test_forward_mode_is_refused(self):
        rows, query, site = every_option()
        rows = [row.detach() for row in rows]
        def of_query(x):
            return route(rows, x)
        def of_partial(x):
            return route(rows, query.detach(), partial=x)
        for function, x in ((of_query, query), (of_partial, site["partial"])):
            with self.assertRaisesRegex(RuntimeError, "no forward-mode derivative"):
                torch.func.jvp(function, (x.detach(),), (x.detach(),))
        with torch.autograd.forward_ad.dual_level():
            with self.assertRaisesRegex(RuntimeError, "no forward-mode derivative"):
                of_query(torch.autograd.forward_ad.make_dual(query.detach(), query.detach()))
            of_query(query.detach())

    def test_double_backward_is_refused(self):
        rows, query, site = every_option()
        y = route(rows, query, 4, **site).square().sum()
        (first,) = torch.autograd.grad(y, query, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "no second derivative"):
            first.sum().backward()


@unittest.skipUnless(torch.cuda.is_available(), "no CUDA device")
class OnCuda(OnCpu):
    device = "cuda"

    def test_inductor(self):
        compiled = torch.compile(lambda *a, **k: 2 * route(*a, **k), fullgraph=True)
        self.assert_same(lambda *a, **k: compiled(*a, **k) / 2, *every_option())

    def test_devices_must_agree(self):
        rows, query, site = every_option()
        with self.assertRaisesRegex(RuntimeError, "norm_weight is on cpu"):
            route(rows, query, norm_weight=site["norm_weight"].cpu())
        with self.assertRaisesRegex(RuntimeError, "rows differ"):
            route([rows[0], rows[1].cpu()], query)

    def test_long_rows(self):
        """Shapes that the fast kernels serve, in float, against double."""
        for n, d in ((9, 7168), (37, 1280), (300, 256)):
            rows = [tensor(7, d, dtype=torch.float32) for _ in range(n)]
            query = (torch.randn(d) / d**0.5).requires_grad_()
            y = route(rows, query, 4)
            expected = eager([row.double() for row in rows], query.double(), 4)
            mine = (y, *torch.autograd.grad(y.square().sum(), (*rows, query)))
            theirs = (expected, *torch.autograd.grad(expected.square().sum(), (*rows, query)))
            for a, b in zip(mine, theirs):
                self.assertLess((a.double() - b).norm() / b.norm(), 1e-5)


if __name__ == "__main__":
    unittest.main()
