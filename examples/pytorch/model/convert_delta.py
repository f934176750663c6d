# SPDX-License-Identifier: Apache-2.0
"""Turns a plain model into a delta model that computes the same, bit for bit, and learns from there.

    python convert_delta.py plain.pt delta.pt --heads 8 --block 8

A checkpoint is {"config": the fields of Config, "model": state_dict}.
"""
import argparse
from dataclasses import asdict, replace

import torch

from decoder import Config, Decoder


def to_delta(plain, routing_heads, block, routing="formula"):
    """A copy of the plain model with routing sites whose gates, null sources and queries are zero."""
    if plain.config.mode != "plain":
        raise ValueError(f"only a plain model can be converted, not one of mode {plain.config.mode}")
    config = replace(plain.config, mode="delta", routing_heads=routing_heads, block=block, routing=routing)
    delta = Decoder(config, plain.dtype)
    kept = {name: value for name, value in delta.state_dict().items() if name.startswith("sites.")}
    delta.load_state_dict(plain.state_dict() | kept)
    return delta.to(plain.embed_tokens.weight.device)


def load(path):
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    model = Decoder(Config(**checkpoint["config"]))
    model.load_state_dict(checkpoint["model"])
    return model


def save(model, path):
    torch.save({"config": asdict(model.config), "model": model.state_dict()}, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plain")
    parser.add_argument("delta")
    parser.add_argument("--heads", type=int, default=8, help="routing heads")
    parser.add_argument("--block", type=int, default=8, help="sublayers of a block: two per layer")
    options = parser.parse_args()
    plain = load(options.plain)
    delta = to_delta(plain, options.heads, options.block)
    tokens = torch.arange(64).unsqueeze(0) % plain.config.vocabulary
    with torch.no_grad():
        if not torch.equal(plain.logits(tokens), delta.logits(tokens)):
            raise SystemExit("the converted model differs from the plain one")
    save(delta, options.delta)


if __name__ == "__main__":
    main()
