# SPDX-License-Identifier: Apache-2.0
"""A decoder in the style of Qwen3, whose parameters have the names of Qwen3ForCausalLM's in transformers; what its sublayers
read and where their outputs go is residual.py."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from residual import begin, make_sites


@dataclass(frozen=True)
class Config:
    """One of the paper's models and how its sublayers are connected."""

    width: int
    layers: int
    attention_heads: int
    kv_heads: int
    hidden: int
    vocabulary: int = 151936
    mode: str = "plain"  # plain, full, block or delta
    routing_heads: int = 1  # 1 is attention residuals
    block: int = 8  # sublayers of a block, in block and delta mode
    routing: str = "formula"  # formula, call, router or published: which program mixes
    fused_norms: bool = False  # with a router: what it reads is normed, and layers have no norms
    theta: float = 1e4
    eps: float = 1e-6

    @property
    def sublayers(self):
        return 2 * self.layers

    @property
    def sites(self):
        """Routing calls of a pass: delta mode leaves the final norm's input as it is."""
        return {"plain": 0, "delta": self.sublayers}.get(self.mode, self.sublayers + 1)


# Scale -> the paper's width, depth, attention heads, KV heads and FFN width.
PAPER = {
    "100M": Config(512, 12, 8, 4, 1536),
    "350M": Config(1024, 24, 16, 8, 4096),
    "1B": Config(1280, 36, 16, 8, 5120),
}


class Linear(nn.Linear):
    """Works in its input's type, whatever its weight is kept in."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.RMSNorm):
    def forward(self, x, place=None):
        """`place`, of a router, is where the gradient of x belongs."""
        if place is None:
            return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)
        from mhar_torch import rms_norm  # needs the built extension

        return rms_norm(x, self.weight, self.eps, place)


class NoNorm(nn.Module):
    """What was read is normed already."""

    def forward(self, x, place=None):
        return x


def norm_of_stream(c):
    return NoNorm() if c.fused_norms else RMSNorm(c.width, c.eps)


def rotate(x, cos, sin):
    """Rotary embedding of [B, heads, T, k]: halves of a head are the two coordinates."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    """Without its last product, as MLP: that makes a row (see Layer)."""

    def __init__(self, c):
        super().__init__()
        self.head_width = c.width // c.attention_heads
        self.q_proj = Linear(c.width, c.width)
        self.k_proj = Linear(c.width, c.kv_heads * self.head_width)
        self.v_proj = Linear(c.width, c.kv_heads * self.head_width)
        self.o_proj = Linear(c.width, c.width)
        self.q_norm = RMSNorm(self.head_width, c.eps)
        self.k_norm = RMSNorm(self.head_width, c.eps)

    def forward(self, x, cos, sin):
        split = lambda y: y.unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        q = rotate(self.q_norm(split(self.q_proj(x))), cos, sin)
        k = rotate(self.k_norm(split(self.k_proj(x))), cos, sin)
        y = F.scaled_dot_product_attention(q, k, split(self.v_proj(x)), is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).flatten(-2)


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = Linear(c.width, c.hidden)
        self.up_proj = Linear(c.width, c.hidden)
        self.down_proj = Linear(c.hidden, c.width)

    def forward(self, x):
        return F.silu(self.gate_proj(x)) * self.up_proj(x)


class Layer(nn.Module):
    """The two sublayers and their norms: `attend` and `feed` are all but their last products, which a depth history computes in
    the place of a row. `forward` is how plain mode connects them."""

    def __init__(self, c):
        super().__init__()
        self.input_layernorm = norm_of_stream(c)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = norm_of_stream(c)
        self.mlp = MLP(c)

    def attend(self, x, cos, sin, place=None):
        return self.self_attn(self.input_layernorm(x, place), cos, sin)

    def feed(self, x, place=None):
        return self.mlp(self.post_attention_layernorm(x, place))

    def forward(self, h, cos, sin):
        h = h + self.self_attn.o_proj(self.attend(h, cos, sin))
        return h + self.mlp.down_proj(self.feed(h))


class Decoder(nn.Module):
    """Tokens [B, T] -> the final norm's output [B, T, d]; `loss` goes on to the vocabulary."""

    def __init__(self, config, dtype=torch.float32):
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = norm_of_stream(config)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        # Made last and without random numbers: a seed gives every mode the same weights.
        self.sites = make_sites(config)
        self.cross_entropy = tied_cross_entropy

    def rotations(self, length, device):
        k = self.config.width // self.config.attention_heads
        rates = self.config.theta ** (-torch.arange(0, k, 2, device=device) / k)
        angles = torch.outer(torch.arange(length, device=device), rates)
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def forward(self, tokens):
        return self.run(tokens)[0]

    def run(self, tokens):
        """The output and the depth history that made it, which plain mode has none of."""
        h = self.embed_tokens(tokens).to(self.dtype)
        cos, sin = self.rotations(tokens.shape[1], tokens.device)
        if self.config.mode == "plain":
            for layer in self.layers:
                h = layer(h, cos, sin)
            return self.norm(h), None
        history = begin(self, h)
        for i, layer in enumerate(self.layers):
            x, place = history.read(2 * i), history.gradient_place(2 * i)
            history.write_linear(layer.attend(x, cos, sin, place), layer.self_attn.o_proj.weight)
            x, place = history.read(2 * i + 1), history.gradient_place(2 * i + 1)
            history.write_linear(layer.feed(x, place), layer.mlp.down_proj.weight)
        last = 2 * len(self.layers)
        return self.norm(history.read(last), history.gradient_place(last)), history

    def logits(self, tokens):
        return F.linear(self(tokens), self.embed_tokens.weight.to(self.dtype))

    def loss(self, tokens, targets):
        return self.cross_entropy(self(tokens), self.embed_tokens.weight, targets)

    def compile_parts(self):
        """Compiles what repeats, once for all layers: whole layers in plain mode, else what lies between routing calls."""
        for layer in self.layers:
            if self.config.mode == "plain":
                layer.compile(dynamic=False)
                continue
            layer.attend = torch.compile(layer.attend, dynamic=False)
            layer.feed = torch.compile(layer.feed, dynamic=False)
        self.norm.compile(dynamic=False)
        self.cross_entropy = torch.compile(tied_cross_entropy, dynamic=False)
        return self


def fuse_norms(state):
    """A full model's state (or its gradients, by name) with the weights of its norms where fused_norms has them."""
    is_norm = lambda name: name == "norm.weight" or name.endswith("layernorm.weight")
    norms = [value for name, value in state.items() if is_norm(name)]  # in the order of the sites
    kept = {name: value for name, value in state.items() if not is_norm(name)}
    return kept | {"sites.output_norm_weight": torch.stack(norms)}


def tied_cross_entropy(x, embedding, targets):
    logits = F.linear(x, embedding.to(x.dtype))
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())
