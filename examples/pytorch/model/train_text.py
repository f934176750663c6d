# SPDX-License-Identifier: Apache-2.0
"""Trains small models on bytes of text and compares how their sublayers are connected: plain, one routing head, eight.

    python train_text.py --out h200_text.json
    python train_text.py --out cpu_text.json --size tiny

The text is Python source code that is installed beside this interpreter: its standard library and its packages. Every tenth
package is held out for validation. A seed decides the weights and the order of the data, for all models alike, so differences
between models are taken seed by seed. Runs on the GPU if there is one; the tiny size is for a CPU.
"""
import argparse
import datetime
import hashlib
import json
import math
import pathlib
import statistics
import sysconfig
import time
from dataclasses import asdict, dataclass, replace

import torch

from decoder import Config, Decoder
from formula import depth_weights


@dataclass(frozen=True)
class Size:
    config: Config
    length: int
    batch: int
    steps: int
    validation_batches: int


SIZES = {
    "small": Size(Config(width=512, layers=8, attention_heads=8, kv_heads=4, hidden=1536, vocabulary=256), 512, 8, 800, 64),
    "tiny": Size(Config(width=64, layers=6, attention_heads=4, kv_heads=2, hidden=192, vocabulary=256), 128, 16, 600, 64),
}
PEAK_RATE = 1e-3  # the paper's tuned rate; not tuned here
MODELS = {"plain": dict(mode="plain"), "H1": dict(mode="full", routing_heads=1), "H8": dict(mode="full", routing_heads=8)}


def read_text(limit):
    """Two arrays of bytes, training and validation: whole packages go to one of them, copies of a file count once, and a zero
    byte stands between files. The order is by a hash of names, so that any part of it is a mixture."""
    places = {pathlib.Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
    files = {path: path.relative_to(place).parts[0] for place in sorted(places, key=lambda p: len(p.parts))
             for path in place.rglob("*.py")}
    hashed = lambda text: hashlib.sha256(str(text).encode()).hexdigest()
    parts, seen, sizes = ([], []), set(), [0, 0]
    for path, package in sorted(files.items(), key=lambda item: hashed(item[0])):
        held_out = int(hashed(package), 16) % 10 == 0
        if sizes[held_out] + path.stat().st_size >= limit[held_out]:
            continue
        content = path.read_bytes()
        if content in seen:
            continue
        seen.add(content)
        sizes[held_out] += len(content) + 1
        parts[held_out].append(content + b"\0")
    return [torch.frombuffer(bytearray(b"".join(part)), dtype=torch.uint8) for part in parts]


def windows(text, starts, length):
    """The bytes from each start on, one more than `length`: inputs and targets are neighbours."""
    return text[starts.unsqueeze(1) + torch.arange(length + 1, device=text.device)].long()


def rate(step, steps):
    """Linear warmup over a twentieth, then a cosine down to a tenth."""
    warmup = steps // 20
    if step < warmup:
        return PEAK_RATE * (step + 1) / warmup
    return PEAK_RATE * (0.55 + 0.45 * math.cos(math.pi * (step - warmup) / (steps - warmup)))


class Training:
    """One model. What a step reads, its windows' starts and its learning rate, are tensors: on a GPU it is a CUDA graph."""

    def __init__(self, config, size, seed, device):
        torch.manual_seed(seed)
        self.length = size.length
        self.on_gpu = device.type == "cuda"
        self.model = Decoder(config, torch.bfloat16 if self.on_gpu else torch.float32).to(device)
        if self.on_gpu:
            self.model.compile_parts()
        self.rate = torch.zeros((), device=device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.rate, betas=(0.9, 0.95), weight_decay=0.1,
                                           fused=True, capturable=self.on_gpu)
        self.starts = torch.zeros(size.batch, dtype=torch.long, device=device)

    def loss(self, text):
        bytes_ = windows(text, self.starts, self.length)
        return self.model.loss(bytes_[:, :-1], bytes_[:, 1:])

    def step(self, text):
        self.optimizer.zero_grad()
        loss = self.loss(text)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def captured(self, text):
        """A function that replays a step and returns its loss."""
        for _ in range(3):  # with a rate of zero: nothing is learned, but moments would remember
            self.step(text)
        for state in self.optimizer.state.values():
            for tensor in state.values():
                tensor.zero_()
        self.optimizer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            loss = self.step(text)
        return lambda: (graph.replay(), loss)[1]

    def run(self, text, starts):
        """Loss of every step."""
        step = self.captured(text) if self.on_gpu else lambda: self.step(text)
        losses = torch.empty(len(starts), device=text.device)
        for i, some in enumerate(starts):
            self.rate.fill_(rate(i, len(starts)))
            self.starts.copy_(some)
            losses[i] = step()
        return losses.tolist()

    def validate(self, text, starts):
        """Mean loss over windows. Gradients stay enabled, unused: the compiled functions are then those of training."""
        total = 0.0
        for some in starts:
            self.starts.copy_(some)
            total += self.loss(text).detach().double()
        return (total / len(starts)).item()


@torch.no_grad()
def mean_depth_weights(model, bytes_):
    """Of every site: the share of each row, mean over positions, by head."""
    twin = Decoder(replace(model.config, routing="formula")).to(bytes_.device)
    twin.load_state_dict(model.state_dict())
    _, history = twin.run(bytes_)
    rows = torch.stack(history.rows)
    return [depth_weights(rows[: i + 1], query, model.config.routing_heads, norm_weight).mean((1, 2)).tolist()
            for i, (query, norm_weight) in enumerate(zip(twin.sites.query, twin.sites.norm_weight))]


def paired(losses, model, baseline):
    """Mean and standard error over seeds of how much higher the model's loss is than the baseline's."""
    differences = [a - b for a, b in zip(losses[model], losses[baseline])]
    return {"mean": statistics.mean(differences), "standard_error": statistics.stdev(differences) / len(differences) ** 0.5}


def summary(losses):
    """Differences between models, once there are seeds to take them over."""
    pairs = (("H1", "plain"), ("H8", "plain"), ("H8", "H1"))
    return {f"{a} - {b}": paired(losses, a, b) for a, b in pairs if min(len(losses[a]), len(losses[b])) > 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the JSON file to write, anew after every model")
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--routing", default="router", help="which program mixes: see residual.py")
    options = parser.parse_args()
    size = SIZES[options.size]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream())
    text, held_out = (part.to(device) for part in read_text((64 << 20, 8 << 20)))
    drawn = lambda seed, part, count: torch.randint(len(part) - size.length, (count, size.batch),
                                                    generator=torch.Generator().manual_seed(seed)).to(device)
    judges = drawn(0, held_out, size.validation_batches)
    losses, last, seconds = ({name: [] for name in MODELS} for _ in range(3))
    depths = {}
    document = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU", "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "text": "installed Python sources, bytes", "training_bytes": len(text), "validation_bytes": len(held_out),
        "size": asdict(size), "routing": options.routing, "peak_rate": PEAK_RATE, "seconds": seconds,
        "validation_loss": losses, "last_training_loss": last, "depth_weights": depths,
    }
    for name, changes in MODELS.items():
        for seed in range(1, options.seeds + 1):
            start = time.perf_counter()
            training = Training(replace(size.config, routing=options.routing, **changes), size, seed, device)
            curve = training.run(text, drawn(seed, text, size.steps))
            last[name].append(statistics.mean(curve[-len(curve) // 20:]))
            losses[name].append(training.validate(held_out, judges))
            seconds[name].append(time.perf_counter() - start)
            if seed == 1 and name != "plain":
                depths[name] = mean_depth_weights(training.model, windows(held_out, judges[0, :4], size.length))
            print(name, seed, losses[name][-1], f"{seconds[name][-1]:.1f} s", flush=True)
        document["difference"] = summary(losses)
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(document, file)
            file.write("\n")
    for name, value in document["difference"].items():
        print(f"{name}: {value['mean']:+.4f} +- {value['standard_error']:.4f}")


if __name__ == "__main__":
    main()
