# SPDX-License-Identifier: Apache-2.0
"""The routing of a whole model over one buffer of rows: calls share passes over rows, forward and
backward, by a plan (docs/sweeps.md)."""
import torch

import mhar_torch.operators  # noqa: F401, loads the library

ARRANGEMENT = {"full": 0, "block": 1, "delta": 2}
_ops = torch.ops.mhar


class Router(torch.nn.Module):
    """`sites` sublayers and the output: site s reads the embedding and the outputs of sublayers
    0 to s-1, and site `sites` is the model's output. The parameters of all sites are stacked, and
    every forward is a pass of its own:

        run = router.begin(embedding)                  # [..., width]
        for site, sublayer in enumerate(sublayers):
            run.write(sublayer(run.read(site)))
        x = run.read(len(sublayers))

    norm_weight   learn the weight of the keys' norm
    bias          learn what is added to the logits, [sites + 1, sources]: the null source's first
    output_norm   what is read is an RMSNorm of the mix, with a weight of its own
    states        type in which unfinished sums are kept: the rows' or float32; None means the rows'
    reuse_rows    the backward writes gradients where rows were: about one buffer of rows less
                  memory, and no second backward
    dtype         of the rows; None means the embedding's
    arrangement   "full", "block" or "delta" with `calls_per_block` sites a block
    """

    def __init__(self, sites, width, heads=1, *, norm_weight=True, bias=False, output_norm=False,
                 scale=1.0, eps=1e-6, output_norm_eps=1e-6, states=None, reuse_rows=False,
                 arrangement="full", calls_per_block=1, gate=None, dtype=None, device=None,
                 parameter_dtype=torch.float32):
        super().__init__()
        if arrangement not in ARRANGEMENT:
            raise ValueError(
                f"mhar: arrangement is one of {', '.join(ARRANGEMENT)}, not {arrangement!r}")
        for name, value, least in (("sites", sites, 0), ("calls_per_block", calls_per_block, 1)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"mhar: {name} is an integer of at least {least}, not {value!r}")
        self.sites, self.width, self.heads = sites, width, heads
        self.scale, self.eps, self.output_norm_eps = scale, eps, output_norm_eps
        self.states, self.reuse_rows, self.dtype = states, reuse_rows, dtype
        self.arrangement, self.calls_per_block = arrangement, calls_per_block
        self.output_norm = output_norm

        def parameter(wanted, value, *shape):
            if not wanted:
                return None
            return torch.nn.Parameter(
                torch.full((sites + 1, *shape), value, dtype=parameter_dtype, device=device))

        delta = arrangement == "delta"
        self.query = parameter(True, 0.0, width)  # zeros: the average
        self.norm_weight = parameter(norm_weight, 1.0, width)
        most = self.rows_read_by(sites) + (arrangement != "full")  # a private row, a null source
        self.bias = parameter(bias, 0.0, most)
        self.null_source = parameter(delta, 0.0, width)
        self.gate = parameter(gate is not None, gate, 1)
        self.output_norm_weight = parameter(output_norm, 1.0, width)

    def extra_repr(self):
        return f"sites={self.sites}, width={self.width}, heads={self.heads}, {self.arrangement}"

    def rows_read_by(self, site):
        if self.arrangement == "full":
            return site + 1
        return site // self.calls_per_block + (self.arrangement == "block")

    def begin(self, embedding):
        """Starts a pass: the embedding is its first row (delta: it only gives shape and type)."""
        run = Run(self, embedding)
        if self.arrangement != "delta":
            run.write(embedding)
        return run

    def forward(self, embedding, sublayers):
        """The output of a model in full mode: what is read after the last sublayer."""
        if self.arrangement != "full" or len(sublayers) != self.sites:
            raise ValueError(f"mhar: {len(sublayers)} sublayers for a {self.arrangement} router of "
                             f"{self.sites} sites; forward runs one per site, in full mode")
        run = self.begin(embedding)
        for site, sublayer in enumerate(sublayers):
            run.write(sublayer(run.read(site)))
        return run.read(len(sublayers))


class Run:
    """One pass. Sites are read in order, each once; a row is written before the first site that
    reads it."""

    def __init__(self, router, embedding):
        self._router = router
        self._sizes = embedding.shape
        self._dtype = router.dtype or embedding.dtype
        self._next_row = 0
        self._with_gradients = torch.is_grad_enabled()
        r = router
        if embedding.device != r.query.device:
            raise RuntimeError(f"mhar: an embedding on {embedding.device} for a router on "
                               f"{r.query.device}")
        biases = (r.sites + 1, r.rows_read_by(r.sites) + (r.arrangement != "full"))
        if r.bias is not None and r.bias.shape != biases:
            raise RuntimeError(f"mhar: bias of shape {tuple(r.bias.shape)}, expected {biases}")
        self._state, self._token = _ops.router_begin(
            self._sizes, self._dtype, ARRANGEMENT[r.arrangement], r.calls_per_block, r.heads,
            r.query, r.norm_weight, r.bias, r.null_source, r.gate, r.output_norm,
            r.output_norm_weight, r.scale, r.eps, r.output_norm_eps,
            r.states or self._dtype, self._with_gradients, r.reuse_rows)

    def write(self, value):
        """The next row, [..., width]: copied, unless it is `next_row()` itself."""
        self._check_mode()
        self._token = _ops.router_write(self._state, self._token, self._next_row,
                                        value.to(self._dtype))
        self._next_row += 1

    def write_linear(self, x, weight):
        """The next row is x @ weight.T, [..., width], computed in its place."""
        self._check_mode()
        self._token = _ops.router_write_linear(self._state, self._token, self._next_row,
                                               x.to(self._dtype), weight.to(self._dtype))
        self._next_row += 1

    def next_row(self):
        """The place of the next row, for a producer that writes it there (outside of autograd)."""
        return _ops.router_row(self._state, self._next_row)

    def read(self, site, *, private_row=None, partial=None):
        """The mix of a site, [..., width] in the rows' type. Block mode: `private_row` is the sum
        of the block so far. `partial` is added to the (gated) mix."""
        self._check_mode()
        r = self._router
        # What a norm reads is the mix itself where nothing is done to it before.
        is_changed = partial is not None or r.gate is not None
        y, _, _, self._token = _ops.router_read(
            self._state, self._token, site, self._sizes, is_changed or r.output_norm,
            is_changed and r.output_norm, private_row, partial)
        # A checkpointed region may come here again: its next row is the one it was.
        self._next_row = r.rows_read_by(site)
        return y

    def gradient_place(self, site):
        """Where the gradient of what this site reads belongs, for `rms_norm`, which is then the one thing that may read it.
        None where a copy is taken instead: without gradients, with more than a plain mix, and while a compiler traces the
        pass itself, which would not see what is written there."""
        r = self._router
        is_plain = r.arrangement == "full" and r.gate is None and not r.output_norm
        if not (is_plain and self._with_gradients) or torch.compiler.is_compiling():
            return None
        return _ops.router_gradient_place(self._state, site)

    def _check_mode(self):
        if self._with_gradients and not torch.is_grad_enabled():
            raise RuntimeError(
                "mhar: this pass began with gradients, and a step without them (under no_grad, or "
                "in a region of a reentrant checkpoint) would cut its graph")


@torch.library.register_fake("mhar::router_begin")
def _(sizes, dtype, arrangement, calls_per_block, num_heads, query, *_):
    return (torch.empty(8, dtype=torch.uint8, device="cpu"), query.new_empty(0, dtype=dtype))


@torch.library.register_fake("mhar::router_write")
def _(state, token, row, value):
    return token.new_empty(0)


@torch.library.register_fake("mhar::router_write_linear")
def _(state, token, row, x, weight):
    return token.new_empty(0)


@torch.library.register_fake("mhar::router_read")
def _(state, token, call, sizes, with_mix, with_combined, private_row, partial):
    return (token.new_empty(sizes), token.new_empty(sizes if with_mix else 0),
            token.new_empty(sizes if with_combined else 0), token.new_empty(0))


@torch.library.register_fake("mhar::router_begin_backward")
def _(state, token, query, *rest):
    *optional, wanted = rest
    return [parameter.new_empty(parameter.shape) if want else query.new_empty(0)
            for parameter, want in zip((query, *optional), wanted)]


@torch.library.register_fake("mhar::router_write_backward")
def _(state, token, row, sizes, wanted):
    return token.new_empty(sizes if wanted else 0), token.new_empty(0)


@torch.library.register_fake("mhar::router_read_backward")
def _(state, token, call, dy, mix, combined, private_row, wants_private, wants_partial):
    return (token.new_empty(dy.shape if wants_private else 0),
            token.new_empty(dy.shape if wants_partial else 0), token.new_empty(0))
