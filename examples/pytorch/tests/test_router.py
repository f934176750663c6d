# SPDX-License-Identifier: Apache-2.0
"""Whole models through the router against the same models in eager PyTorch."""
import gc
import tempfile
import unittest

try:
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.utils.checkpoint import checkpoint

    from mhar_torch import Router, rms_norm
except (ImportError, StopIteration) as reason:
    raise unittest.SkipTest(f"PyTorch or the built extension is missing: {reason}")

SITES, WIDTH, HEADS, SHAPE, PER_BLOCK = 5, 24, 4, (2, 3), 2


def eager_read(router, site, rows, partial=None):
    """What a site reads of a list of rows, on the router's parameters."""
    if router.null_source is not None:
        like = partial if partial is not None else rows[0]
        rows = [router.null_source[site].to(like.dtype).expand_as(like), *rows]
    s = torch.stack(rows)
    keys = s * torch.rsqrt(s.square().mean(-1, keepdim=True) + router.eps)
    if router.norm_weight is not None:
        keys = keys * router.norm_weight[site]
    heads = (router.heads, -1)
    logits = router.scale * (keys * router.query[site]).unflatten(-1, heads).sum(-1)
    if router.bias is not None:
        logits = logits + router.bias[site, : len(rows)].view(-1, *[1] * (logits.dim() - 1))
    y = (torch.softmax(logits, 0).unsqueeze(-1) * s.unflatten(-1, heads)).sum(0).flatten(-2)
    if router.gate is not None:
        y = router.gate[site] * y
    if partial is not None:
        y = y + partial
    if router.output_norm:
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + router.output_norm_eps)
        y = y * router.output_norm_weight[site]
    return y


class Eager:
    """A pass without the router."""

    def __init__(self, router, embedding):
        self.router, self.rows = router, []
        if router.arrangement != "delta":
            self.rows.append(embedding)

    def read(self, site, private_row=None, partial=None):
        rows = self.rows if private_row is None else [*self.rows, private_row]
        return eager_read(self.router, site, rows, partial)

    def write(self, value):
        self.rows.append(value)


def full(run, embedding, sublayers):
    for site, sublayer in enumerate(sublayers):
        run.write(sublayer(run.read(site)))
    return run.read(len(sublayers))


def block(run, embedding, sublayers):
    """Rows are sums of blocks; within a block the sum so far is a private row."""
    total = None
    for site, sublayer in enumerate(sublayers):
        y = sublayer(run.read(site, private_row=total))
        total = y if total is None else total + y
        if (site + 1) % PER_BLOCK == 0:
            run.write(total)
            total = None
    return run.read(len(sublayers), private_row=total)


def delta(run, embedding, sublayers):
    """A residual stream, and gated mixes of the sums of blocks beside it."""
    stream, total = embedding, 0
    for site, sublayer in enumerate(sublayers):
        y = sublayer(run.read(site, partial=stream))
        stream, total = stream + y, total + y
        if (site + 1) % PER_BLOCK == 0:
            run.write(total)
            total = 0
    return run.read(len(sublayers), partial=stream)


def make(dtype=torch.float64, device="cpu", width=WIDTH, shape=SHAPE, sites=SITES, **options):
    """A router that does not average, its sublayers and an embedding."""
    torch.manual_seed(3)
    router = Router(sites, width, HEADS, parameter_dtype=dtype, eps=1e-3, **options)
    with torch.no_grad():
        for parameter in router.parameters():
            parameter.add_(torch.randn_like(parameter) * (WIDTH / width) ** 0.5)
    sublayers = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(width, width, dtype=dtype), torch.nn.Tanh())
        for _ in range(sites))
    embedding = torch.randn(*shape, width, dtype=dtype).to(device).requires_grad_()
    return router.to(device), sublayers.to(device), embedding


def leaves(*parts):
    return [leaf for part in parts
            for leaf in ([part] if isinstance(part, torch.Tensor) else part.parameters())]


def loss_of(y):
    return y.square().sum() + y[..., 0].sum()


def gradients(y, parts, **options):
    return torch.autograd.grad(loss_of(y), leaves(*parts), **options)


class Model(torch.nn.Module):
    def __init__(self, router, sublayers):
        super().__init__()
        self.router, self.sublayers = router, sublayers

    def forward(self, embedding):
        return self.router(embedding, self.sublayers)


def replicated(model):
    return torch.nn.parallel.DistributedDataParallel(model)


def sharded(model):
    """Every sublayer gathers its own parameters, the model the router's."""
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    for sublayer in model.sublayers:
        fully_shard(sublayer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train_one_of_two(rank, folder, spread):
    """One of two ranks of data-parallel training, each on half of the positions."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank,
                                         world_size=2)

    def train():
        router, sublayers, embedding = make()
        model = spread(Model(router, sublayers))
        for _ in range(2):
            model.zero_grad()
            loss_of(model(embedding[rank : rank + 1])).backward()
        return [getattr(leaf.grad, "full_tensor", lambda g=leaf.grad: g)()
                for leaf in leaves(router, sublayers)]

    whole = train()
    if rank == 0:
        torch.save(whole, f"{folder}/gradients")
    # A sharded model that outlives its processes' group, or a rank that does not wait, now and then aborts at exit.
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


class OnCpu(unittest.TestCase):
    device = "cpu"

    def make(self, **options):
        return make(device=self.device, **options)

    def assert_all_close(self, mine, theirs, **tolerance):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, **tolerance)

    def assert_same(self, model, **options):
        parts = self.make(**options)
        router, sublayers, embedding = parts
        mine = model(router.begin(embedding), embedding, sublayers)
        theirs = model(Eager(router, embedding), embedding, sublayers)
        torch.testing.assert_close(mine, theirs)
        self.assert_all_close(gradients(mine, parts), gradients(theirs, parts))

    def test_full(self):
        for options in ({}, {"output_norm": True}, {"reuse_rows": True}, {"norm_weight": False},
                        {"bias": True}, {"gate": 0.5, "scale": 0.7}):
            with self.subTest(**options):
                self.assert_same(full, **options)

    def test_block(self):
        for options in ({}, {"output_norm": True}, {"reuse_rows": True}, {"bias": True}):
            with self.subTest(**options):
                self.assert_same(block, arrangement="block", calls_per_block=PER_BLOCK, **options)

    def test_delta(self):
        for options in ({}, {"gate": 0.5}, {"gate": 0.5, "reuse_rows": True},
                        {"gate": 0.5, "output_norm": True, "bias": True}):
            with self.subTest(**options):
                self.assert_same(delta, arrangement="delta", calls_per_block=PER_BLOCK, **options)

    def test_deep(self):
        self.assert_same(full, sites=40)

    def test_types(self):
        for dtype, tolerance in ((torch.float32, 2e-4), (torch.bfloat16, 2e-2),
                                 (torch.float16, 4e-3)):
            for width, shape in ((WIDTH, SHAPE), (512, (2, 33))):  # 512: kernels on tensor cores
                router, sublayers, embedding = self.make(width=width, shape=shape)
                exact = full(Eager(router, embedding), embedding, sublayers)
                expected = gradients(exact, (router, sublayers, embedding))
                rows = embedding.detach().to(dtype).requires_grad_()
                sublayers.to(dtype)
                router.float()
                parts = (router, sublayers, rows)
                mine = router(rows, sublayers)
                self.assertEqual(mine.dtype, dtype)
                for a, b in zip((mine, *gradients(mine, parts)), (exact, *expected)):
                    self.assertLess((a.double() - b).norm() / b.norm(), 4 * tolerance)

    def test_converted_rows(self):
        router, sublayers, embedding = self.make(dtype=torch.float32)
        router.dtype = torch.bfloat16
        y = full(router.begin(embedding), embedding,
                 [lambda x, f=f: f(x.float()) for f in sublayers])
        self.assertEqual(y.dtype, torch.bfloat16)
        y.float().sum().backward()
        self.assertEqual(embedding.grad.dtype, torch.float32)

    def test_several_passes_at_once(self):
        parts, others = self.make(), self.make(output_norm=True)
        expected = [gradients(p[0](p[2], p[1]), p) for p in (parts, others)]
        ys = [p[0](p[2], p[1]) for p in (parts, others, parts)]
        for y, p, e in zip(ys[::-1], (parts, others, parts), (0, 1, 0)):
            self.assert_all_close(gradients(y, p), expected[e], rtol=0, atol=0)

    def test_interleaved_passes(self):
        router, sublayers, embedding = parts = self.make()
        expected = gradients(router(embedding, sublayers), parts)
        runs = [router.begin(embedding) for _ in range(2)]
        for site, sublayer in enumerate(sublayers):
            for run in runs:
                run.write(sublayer(run.read(site)))
        y = sum(run.read(SITES) for run in runs) / 2
        self.assert_all_close(gradients(y, parts), expected)

    def test_retained_graph(self):
        parts = self.make()
        y = parts[0](parts[2], parts[1])
        first = gradients(y, parts, retain_graph=True)
        self.assert_all_close(gradients(y, parts), first, rtol=0, atol=0)
        with self.assertRaisesRegex(RuntimeError, "second time"):
            gradients(y, parts)

    def test_reused_rows_are_gone(self):
        parts = self.make(reuse_rows=True)
        y = parts[0](parts[2], parts[1])
        gradients(y, parts, retain_graph=True)
        with self.assertRaisesRegex(RuntimeError, "reuse_rows"):
            gradients(y, parts)

    def test_partial_backwards(self):
        router, sublayers, embedding = parts = self.make()

        def both(run):
            inputs = []
            for site, sublayer in enumerate(sublayers):
                inputs.append(run.read(site))
                run.write(sublayer(inputs[-1]))
            return inputs, run.read(SITES)

        inputs, y = both(router.begin(embedding))
        expected_inputs, expected = both(Eager(router, embedding))
        # Stopping on the way, going on from there, using an inner input alone, and all again.
        for loss, targets in ((lambda i, y: y.sum(), lambda i: [i[3]]),
                              (lambda i, y: i[3].square().sum(), lambda i: [embedding, i[1]]),
                              (lambda i, y: i[2].sum() + y.square().sum(),
                               lambda i: leaves(*parts)),
                              (lambda i, y: loss_of(y), lambda i: leaves(*parts))):
            mine = torch.autograd.grad(loss(inputs, y), targets(inputs), retain_graph=True,
                                       allow_unused=True)
            theirs = torch.autograd.grad(loss(expected_inputs, expected), targets(expected_inputs),
                                         retain_graph=True, allow_unused=True)
            for a, b in zip(mine, theirs, strict=True):
                torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b)

    def test_frozen_parts(self):
        for frozen in ((0,), (1,), (2,), (0, 2), (1, 2), (0, 1)):
            parts = self.make()
            for index in frozen:
                parts[index].requires_grad_(False)
            router, sublayers, embedding = parts
            wanted = [leaf for leaf in leaves(*parts) if leaf.requires_grad]
            mine = torch.autograd.grad(loss_of(router(embedding, sublayers)), wanted)
            theirs = torch.autograd.grad(
                loss_of(full(Eager(router, embedding), embedding, sublayers)), wanted)
            self.assert_all_close(mine, theirs)

    def test_without_gradients(self):
        router, sublayers, embedding = self.make()
        expected = router(embedding, sublayers)
        with torch.no_grad():
            self.assertTrue(torch.equal(router(embedding, sublayers), expected))
        with torch.inference_mode():
            self.assertTrue(torch.equal(router(embedding, sublayers), expected))

    def test_checkpointed_sublayers(self):
        router, sublayers, embedding = parts = self.make()
        expected = gradients(router(embedding, sublayers), parts)
        for reentrant in (True, False):
            run = router.begin(embedding)
            for site, sublayer in enumerate(sublayers):
                run.write(checkpoint(sublayer, run.read(site), use_reentrant=reentrant))
            for leaf in leaves(*parts):
                leaf.grad = None
            loss_of(run.read(SITES)).backward()
            self.assert_all_close([leaf.grad for leaf in leaves(*parts)], expected, rtol=0, atol=0)

    def test_checkpointed_reads_and_writes(self):
        """A whole region of the pass is run again: the same bits, from rows instead of mixes."""
        for options in ({}, {"output_norm": True}, {"reuse_rows": True}, {"sites": 40}):
            router, sublayers, embedding = parts = self.make(**options)
            expected = gradients(router(embedding, sublayers), parts)
            run = router.begin(embedding)
            for site, sublayer in enumerate(sublayers):
                checkpoint(lambda f=sublayer, s=site: run.write(f(run.read(s))),
                           use_reentrant=False)
            self.assert_all_close(gradients(run.read(len(sublayers)), parts), expected, rtol=0,
                                  atol=0)

    def test_steps_without_gradients_are_refused(self):
        router, sublayers, embedding = self.make()
        run = router.begin(embedding)
        with self.assertRaisesRegex(RuntimeError, "reentrant"):
            checkpoint(lambda e: sublayers[0](run.read(0)), embedding, use_reentrant=True)

    def test_rows_written_in_place(self):
        router, _, embedding = self.make()
        with torch.no_grad():
            expected = router(embedding, [torch.tanh] * SITES)
            run = router.begin(embedding)
            for site in range(SITES):
                run.write(torch.tanh(run.read(site), out=run.next_row()))
            self.assertTrue(torch.equal(run.read(SITES), expected))

    def test_linear_rows(self):
        """A product that is computed in its row's place, plain, compiled and computed again."""
        router, sublayers, embedding = self.make()
        for f in sublayers:
            f[0].bias = None
        wanted = leaves(router, embedding, *(f[0].weight for f in sublayers))
        expected = router(embedding, [f[0] for f in sublayers])

        def model(again):
            run = router.begin(embedding)
            for site, f in enumerate(sublayers):
                step = lambda f=f, s=site: run.write_linear(run.read(s), f[0].weight)
                checkpoint(step, use_reentrant=False) if again else step()
            return run.read(SITES)

        theirs = torch.autograd.grad(loss_of(expected), wanted)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        for mine in (model(False), model(True), compiled(False)):
            torch.testing.assert_close(mine, expected)
            self.assert_all_close(torch.autograd.grad(loss_of(mine), wanted), theirs)
        run = router.begin(embedding)
        with self.assertRaisesRegex(RuntimeError, "is no product of"):
            run.write_linear(run.read(0), sublayers[0][0].weight[:, 1:])

    def test_gradients_in_their_place(self):
        """Norms write gradients where the router reads them: eager, compiled, computed again, and over rows."""
        for reuse_rows in (False, True):
            router, sublayers, embedding = self.make(reuse_rows=reuse_rows)
            weight = (torch.arange(WIDTH, dtype=torch.float64, device=self.device) / WIDTH).requires_grad_()
            wanted = leaves(router, sublayers, embedding, weight)

            def model(run, step, places=True, again=False):
                for site in range(SITES + 1):
                    def region(site=site):
                        x, place = run.read(site), run.gradient_place(site) if places else None
                        return step(x, weight, site, place)
                    y = checkpoint(region, use_reentrant=False) if again else region()
                    if site < SITES:
                        run.write(y)
                return y

            def step(x, weight, site, place):
                y = rms_norm(x, weight, 1e-3, place)
                return sublayers[site](y) if site < SITES else y

            expected = model(router.begin(embedding), step, places=False)
            theirs = torch.autograd.grad(loss_of(expected), wanted)
            compiled = torch.compile(step, backend="aot_eager")
            whole = torch.compile(lambda x: model(router.begin(x), step), fullgraph=True, backend="aot_eager")
            for mine in (model(router.begin(embedding), step), model(router.begin(embedding), compiled),
                         model(router.begin(embedding), step, again=True), whole(embedding)):
                torch.testing.assert_close(mine, expected)
                self.assert_all_close(torch.autograd.grad(loss_of(mine), wanted), theirs)

    def test_places_without_gradients(self):
        """A loss that does not reach the last sites, and readers that no norm follows."""
        router, sublayers, embedding = parts = self.make()
        weight = torch.ones(WIDTH, dtype=torch.float64, device=self.device)
        for used in (SITES, 2):
            losses = []
            for places in (True, False):
                run, norms = router.begin(embedding), []
                for site in range(SITES + 1):
                    x, place = run.read(site), run.gradient_place(site) if places else None
                    norms.append(rms_norm(x, weight, 1e-3, place))
                    if site < SITES:
                        run.write(sublayers[site](norms[-1]))
                losses.append(norms[used].square().sum())
            mine, theirs = (torch.autograd.grad(loss, leaves(*parts), allow_unused=True, materialize_grads=True)
                            for loss in losses)
            self.assert_all_close(mine, theirs)

    def test_places_behind_a_partial(self):
        """What a norm left in its place is the gradient of what is added to the mix, too."""
        for shape in ((2, 3), ()):
            router, sublayers, embedding = parts = self.make(shape=shape)
            weight = torch.ones(WIDTH, dtype=torch.float64, device=self.device).requires_grad_()
            partial = torch.randn_like(embedding).requires_grad_()
            results = []
            for places in (True, False):
                run = router.begin(embedding)
                for site in range(SITES + 1):
                    x = run.read(site, partial=partial if site % 2 == 0 else None)
                    y = rms_norm(x, weight, 1e-3, run.gradient_place(site) if places else None)
                    if site < SITES:
                        run.write(sublayers[site](y))
                results.append(torch.autograd.grad(y.square().sum(), leaves(*parts, partial, weight)))
            self.assert_all_close(*results)

    def test_places_of_gradients_are_refused(self):
        router, sublayers, embedding = parts = self.make()
        weight = torch.ones(WIDTH, dtype=torch.float64, device=self.device)

        def step(site, x, place):
            return sublayers[site](rms_norm(x, weight, 1e-3, place)) + x

        run = router.begin(embedding)
        for site in range(SITES):
            run.write(step(site, run.read(site), run.gradient_place(site)))
        with self.assertRaisesRegex(RuntimeError, "another reader"):
            gradients(run.read(SITES), parts)
        with self.assertRaisesRegex(RuntimeError, "site 9"):
            run.gradient_place(9)
        run = router.begin(embedding)
        for site in range(SITES + 1):
            y = rms_norm(run.read(site), weight, 1e-3, run.gradient_place((site + 1) % SITES))
            if site < SITES:
                run.write(sublayers[site](y))
        with self.assertRaisesRegex(RuntimeError, f"site {SITES} read was written in the place of site 1's"):
            gradients(y, parts)
        self.assertIsNone(self.make(output_norm=True)[0].begin(embedding).gradient_place(0))
        with torch.no_grad():
            self.assertIsNone(router.begin(embedding).gradient_place(0))

    def test_autocast(self):
        """Sublayers that autocast turns to 16 bits write rows of the embedding's type."""
        router, sublayers, embedding = parts = self.make(dtype=torch.float32)

        def model(run):
            with torch.autocast(self.device, torch.bfloat16):
                return full(run, embedding, sublayers)

        mine, theirs = model(router.begin(embedding)), model(Eager(router, embedding))
        self.assertEqual(mine.dtype, torch.float32)
        for a, b in zip(gradients(mine, parts), gradients(theirs, parts)):
            self.assertLess((a - b).norm() / b.norm(), 4e-2)

    def test_strided_gradients_and_outputs(self):
        router, sublayers, embedding = parts = self.make()
        strided = [lambda x, f=f: f(x).transpose(0, 1).contiguous().transpose(0, 1)
                   for f in sublayers]
        mine = full(router.begin(embedding), embedding, strided)
        theirs = full(Eager(router, embedding), embedding, strided)
        for loss in (lambda y: y.sum(), lambda y: y[..., ::2].sum(),
                     lambda y: (y.transpose(0, 1) * torch.ones_like(y).transpose(0, 1)).sum()):
            self.assert_all_close(
                torch.autograd.grad(loss(mine), leaves(*parts), retain_graph=True),
                torch.autograd.grad(loss(theirs), leaves(*parts), retain_graph=True))

    def test_empty(self):
        router, sublayers, embedding = self.make(shape=(0, 3))
        y = router(embedding, sublayers)
        y.sum().backward()
        self.assertEqual((y.shape, embedding.grad.shape), ((0, 3, WIDTH),) * 2)
        self.assertTrue((router.query.grad == 0).all())

    def test_order_is_kept(self):
        router, sublayers, embedding = self.make()
        run = router.begin(embedding)
        with self.assertRaisesRegex(RuntimeError, "site 4294967296 is out of range"):
            router.begin(embedding).read(2**32)
        with self.assertRaisesRegex(RuntimeError, "site 1 is read where site 0 is next"):
            run.read(1)
        x = run.read(0)
        with self.assertRaisesRegex((RuntimeError, ValueError), "not been appended"):
            run.read(1)
        with self.assertRaisesRegex(RuntimeError, "begins before site 1 was read"):
            x.sum().backward()
        for wrong in (x[..., 1:], x[:1]):
            with self.assertRaisesRegex(RuntimeError, "a row of"):
                run.write(wrong)
        run = router.begin(embedding)
        for _ in range(SITES):
            run.write(embedding)
        with self.assertRaisesRegex(RuntimeError, "has no row"):
            run.write(embedding)

    def test_wrong_arguments_are_refused(self):
        for arguments, said in ((dict(arrangement="blocks"), "arrangement is one of full, block"),
                                (dict(calls_per_block=0), "calls_per_block is an integer of at"),
                                (dict(calls_per_block=1.5), "calls_per_block is an integer of at")):
            with self.assertRaisesRegex(ValueError, said):
                Router(SITES, WIDTH, HEADS, **arguments)
        with self.assertRaisesRegex(ValueError, "sites is an integer of at least 0"):
            Router(-1, WIDTH, HEADS)
        with self.assertRaisesRegex(RuntimeError, r"query of \[6, 0\] for rows of \[3, 0\]"):
            Router(SITES, 0, device=self.device).begin(torch.zeros(3, 0, device=self.device))
        router, sublayers, embedding = self.make()
        with self.assertRaisesRegex(ValueError, f"{SITES - 1} sublayers for a full router"):
            router(embedding, sublayers[:-1])
        router, sublayers, embedding = self.make(arrangement="delta")
        with self.assertRaisesRegex(ValueError, "a delta router"):
            router(embedding, sublayers)
        with self.assertRaisesRegex(RuntimeError, "an embedding on meta for a router on"):
            router.begin(embedding.to("meta"))
        router, sublayers, embedding = self.make(bias=True)
        router.bias = torch.nn.Parameter(router.bias[:, :1].detach().clone())
        with self.assertRaisesRegex(RuntimeError, r"bias of shape \(6, 1\), expected \(6, 6\)"):
            router.begin(embedding)

    def test_changed_inputs_are_noticed(self):
        router, sublayers, embedding = self.make()
        y = router(embedding, sublayers)
        with torch.no_grad():
            router.query.add_(1)
        with self.assertRaisesRegex(RuntimeError, "inplace"):
            y.sum().backward()
        run = router.begin(embedding)
        for site in range(SITES):
            x = run.read(site)
            run.write(x * 2)
        x.data.add_(0)
        x.detach().add_(1)
        with self.assertRaisesRegex(RuntimeError, "inplace"):
            run.read(SITES).sum().backward()

    def test_second_derivative_is_refused(self):
        router, sublayers, embedding = self.make()
        y = router(embedding, sublayers)
        (first,) = torch.autograd.grad(loss_of(y), embedding, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "mhar::router_.* is not implemented"):
            first.sum().backward()

    def test_sizes_of_others_are_refused(self):
        router, _, embedding = self.make()
        run = router.begin(embedding)
        with self.assertRaisesRegex(RuntimeError, "beside rows of"):
            torch.ops.mhar.router_read(run._state, run._token, 0, (1, WIDTH), False, False, None,
                                       None)

    def test_copies_of_a_pass_are_refused(self):
        router, _, embedding = self.make()
        run = router.begin(embedding)
        with self.assertRaisesRegex(RuntimeError, "holds no pass"):
            torch.ops.mhar.router_row(run._state.clone(), 0)

    def test_anomaly_detection(self):
        parts = self.make()
        with torch.autograd.detect_anomaly(check_nan=True):
            loss_of(parts[0](parts[2], parts[1])).backward()

    def compiled(self, backend):
        parts = self.make()
        router, sublayers, embedding = parts
        expected = router(embedding, sublayers)
        compiled = torch.compile(lambda x: 2 * router(x, sublayers), fullgraph=True,
                                 backend=backend)
        for _ in range(2):
            y = compiled(embedding) / 2
            torch.testing.assert_close(y, expected)
            self.assert_all_close(gradients(y, parts),
                                  gradients(expected, parts, retain_graph=True))
        with torch.no_grad():
            torch.testing.assert_close(compiled(embedding) / 2, expected)

    def test_compiled(self):
        self.compiled("aot_eager")

    def test_compiled_sublayers(self):
        router, sublayers, embedding = parts = self.make()
        expected = gradients(router(embedding, sublayers), parts)
        compiled = [torch.compile(f, backend="aot_eager") for f in sublayers]
        self.assert_all_close(gradients(router(embedding, compiled), parts), expected)

    @unittest.skipUnless(torch.distributed.is_available(), "no torch.distributed")
    def test_data_parallel(self):
        router, sublayers, embedding = make()
        expected = torch.autograd.grad(loss_of(router(embedding, sublayers)) / 2,
                                       leaves(router, sublayers))
        for spread in (replicated, sharded):
            with self.subTest(spread.__name__), tempfile.TemporaryDirectory() as folder:
                torch.multiprocessing.spawn(train_one_of_two, (folder, spread), nprocs=2)
                self.assert_all_close(torch.load(f"{folder}/gradients"), expected)


@unittest.skipUnless(torch.cuda.is_available(), "no CUDA device")
class OnCuda(OnCpu):
    device = "cuda"
    test_data_parallel = None  # said once, on the CPU

    def test_inductor(self):
        self.compiled("inductor")

    def test_graph_capture(self):
        """A whole step, forward and backward, captured once and replayed on another input."""
        router, sublayers, embedding = parts = self.make(dtype=torch.float32)

        def step():
            loss_of(router(embedding, sublayers)).backward()

        step()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        for leaf in leaves(*parts):
            leaf.grad = None
        with torch.cuda.graph(graph):
            step()
        with torch.no_grad():
            embedding.mul_(0.5)
        graph.replay()
        mine = [leaf.grad.clone() for leaf in leaves(*parts)]
        for leaf in leaves(*parts):
            leaf.grad = None
        step()
        self.assert_all_close(mine, [leaf.grad for leaf in leaves(*parts)])


if __name__ == "__main__":
    unittest.main()
