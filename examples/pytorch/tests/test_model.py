# SPDX-License-Identifier: Apache-2.0
"""Tiny models on the CPU: what each mode computes, the conversion of a plain model, and routing programs against each other."""
import json
import pathlib
import sys
import tempfile
import unittest
from dataclasses import replace
from unittest import mock
from xml.etree import ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "model"))

try:
    import torch

    import convert_delta
    import plot_depth
    import train_text
    from convert_delta import load, save, to_delta
    from decoder import PAPER, Config, Decoder, fuse_norms
    from residual import Block, Full
except ImportError as reason:
    raise unittest.SkipTest(f"PyTorch is missing: {reason}")

try:
    import mhar_torch  # noqa: F401
except (ImportError, StopIteration):
    mhar_torch = None

TINY = Config(width=32, layers=4, attention_heads=4, kv_heads=2, hidden=48, vocabulary=50, block=3)
MODES = ("plain", "full", "block", "delta")


def tiny(dtype=torch.float32, **changes):
    torch.manual_seed(1)
    return Decoder(replace(TINY, **changes), dtype).to(dtype)


def stirred(model):
    """With parameters as after some training: nothing is zero."""
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def tokens(length=9):
    return torch.randint(TINY.vocabulary, (2, length), generator=torch.Generator().manual_seed(3))


def loss_and_gradients(model):
    t = tokens()
    model.zero_grad()
    loss = model.loss(t[:, :-1], t[:, 1:])
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


class ModelTest(unittest.TestCase):
    def assert_same_training(self, one, other):
        loss, gradients = loss_and_gradients(one)
        loss2, gradients2 = loss_and_gradients(other)
        torch.testing.assert_close(loss, loss2)
        for name, gradient in gradients.items():
            scale = gradient.abs().max().item()
            torch.testing.assert_close(gradients2[name], gradient, rtol=0, atol=1e-10 * scale, msg=lambda m: f"{name}: {m}")

    def test_shapes(self):
        for mode in MODES:
            for heads in (1, 4):
                model = tiny(mode=mode, routing_heads=heads)
                self.assertEqual(model(tokens()).shape, (2, 9, 32))
                self.assertEqual(model.logits(tokens()).shape, (2, 9, 50))
                _, gradients = loss_and_gradients(stirred(model))
                # With one source there is nothing to choose.
                alone = {(name, i) for i in range({"plain": 0, "delta": TINY.block}.get(mode, 1))
                         for name in ("sites.query", "sites.norm_weight")}
                lines = lambda g: enumerate(g if g.dim() > 1 else [g])
                idle = {(name, i) for name, g in gradients.items() for i, line in lines(g) if line.abs().max() == 0}
                self.assertEqual({one for one in idle if one[0] != "embed_tokens.weight"}, alone)

    def test_a_seed_gives_every_mode_the_same_weights(self):
        plain = tiny().state_dict()
        for mode in MODES[1:]:
            state = tiny(mode=mode).state_dict()
            self.assertTrue(all(torch.equal(state[name], plain[name]) for name in plain))

    def test_routing_adds_two_vectors_per_site(self):
        count = lambda **changes: sum(p.numel() for p in tiny(**changes).parameters())
        self.assertEqual(count(mode="full", routing_heads=4) - count(), 9 * 2 * 32)
        self.assertEqual(count(mode="full", routing_heads=4), count(mode="full", routing_heads=1))
        self.assertEqual(count(mode="delta") - count(), 8 * (3 * 32 + 1))

    def test_sizes_of_the_paper(self):
        for name, parameters in (("100M", 116), ("350M", 533), ("1B", 1079)):
            with torch.device("meta"):
                model = Decoder(PAPER[name])
            self.assertEqual(round(sum(p.numel() for p in model.parameters()) / 1e6), parameters)

    def test_positions_see_no_later_ones(self):
        for mode in MODES:
            model = stirred(tiny(mode=mode, routing_heads=4))
            t = tokens()
            changed = t.clone()
            changed[:, 5:] = (changed[:, 5:] + 1) % TINY.vocabulary
            torch.testing.assert_close(model(t)[:, :5], model(changed)[:, :5])

    def test_zero_queries_average(self):
        model = tiny(mode="full", routing_heads=4)
        rows = [torch.randn(2, 9, 32) for _ in range(5)]
        history = Full(model, rows[0])
        for row in rows[1:]:
            history.write(row)
        torch.testing.assert_close(history.read(4), torch.stack(rows).mean(0))

    def test_block_rows(self):
        """With zero queries, a sublayer reads the mean of the embedding, the finished blocks' sums and the running sum."""
        model = tiny(mode="block")
        e, a, b, c, d = (torch.randn(2, 9, 32) for _ in range(5))
        history = Block(model, e)
        reads = [history.read(0)]
        for i, y in enumerate((a, b, c, d)):
            history.write(y)
            reads.append(history.read(i + 1))
        whole = a + b + c
        for read, mean in zip(reads, (e, (e + a) / 2, (e + a + b) / 2, (e + whole) / 2, (e + whole + d) / 3)):
            torch.testing.assert_close(read, mean)

    def test_converted_model_is_the_plain_one_bit_for_bit(self):
        plain = stirred(tiny())
        for heads in (1, 4):
            delta = to_delta(plain, routing_heads=heads, block=3)
            self.assertTrue(torch.equal(delta.logits(tokens()), plain.logits(tokens())))
        # The gates learn at once, what stands behind them once they are open.
        _, gradients = loss_and_gradients(delta)
        self.assertTrue((gradients["sites.gate"][3:] != 0).all())
        self.assertEqual(gradients["sites.query"].abs().max(), 0)

    def test_conversion_refuses_what_is_not_plain(self):
        with self.assertRaisesRegex(ValueError, "plain"):
            to_delta(tiny(mode="full"), routing_heads=4, block=3)

    def test_conversion_of_a_file(self):
        plain = stirred(tiny())
        with tempfile.TemporaryDirectory() as folder:
            before, after = f"{folder}/plain.pt", f"{folder}/delta.pt"
            save(plain, before)
            with mock.patch("sys.argv", ["convert_delta.py", before, after, "--heads", "4", "--block", "2"]):
                convert_delta.main()
            delta = load(after)
        self.assertEqual((delta.config.mode, delta.config.routing_heads, delta.config.block), ("delta", 4, 2))
        self.assertTrue(torch.equal(delta.logits(tokens()), plain.logits(tokens())))

    @unittest.skipUnless(mhar_torch, "the extension is not built")
    def test_operator_trains_as_the_formula_does(self):
        for mode in MODES[1:]:
            for heads in (1, 4):
                same = dict(dtype=torch.float64, mode=mode, routing_heads=heads)
                self.assert_same_training(stirred(tiny(**same)), stirred(tiny(**same, routing="call")))

    @unittest.skipUnless(hasattr(mhar_torch, "Router"), "the extension is not built")
    def test_router_trains_as_the_formula_does(self):
        for heads in (1, 4):
            same = dict(dtype=torch.float64, mode="full", routing_heads=heads)
            self.assert_same_training(stirred(tiny(**same)), stirred(tiny(**same, routing="router")))

    @unittest.skipUnless(hasattr(mhar_torch, "Router"), "the extension is not built")
    def test_fused_norms_are_the_layers_norms(self):
        same = dict(dtype=torch.float64, mode="full", routing_heads=4)
        model = stirred(tiny(**same))
        fused = tiny(**same, routing="router", fused_norms=True)
        fused.load_state_dict(fuse_norms(model.state_dict()))
        loss, gradients = loss_and_gradients(model)
        fused_loss, fused_gradients = loss_and_gradients(fused)
        torch.testing.assert_close(fused_loss, loss)
        torch.testing.assert_close(fused_gradients, fuse_norms(gradients))

    def test_norms_are_fused_with_a_router_only(self):
        with self.assertRaisesRegex(ValueError, "router"):
            tiny(mode="full", fused_norms=True)

    @unittest.skipUnless(mhar_torch, "the extension is not built")
    def test_operator_keeps_the_plain_model_too(self):
        plain = stirred(tiny())
        delta = to_delta(plain, routing_heads=4, block=3, routing="call")
        self.assertTrue(torch.equal(delta.logits(tokens()), plain.logits(tokens())))


class TrainingTest(unittest.TestCase):
    def test_windows_are_neighbours(self):
        text = torch.arange(2000).remainder(251).to(torch.uint8)
        w = train_text.windows(text, torch.tensor([0, 7, 1000]), 512)
        self.assertEqual(w.shape, (3, 512 + 1))
        self.assertTrue(torch.equal(w[1], text[7 : 7 + 512 + 1].long()))

    def test_rate_rises_and_falls_to_a_tenth(self):
        rates = [train_text.rate(step, 1000) for step in range(1001)]
        self.assertEqual(max(rates), rates[50])
        self.assertAlmostEqual(rates[50], train_text.PEAK_RATE)
        self.assertAlmostEqual(rates[1000], 0.1 * train_text.PEAK_RATE)
        self.assertEqual(rates[:50], sorted(rates[:50]))

    def test_differences_are_taken_seed_by_seed(self):
        result = train_text.paired({"a": [1.0, 2.0, 3.0], "b": [2.0, 3.0, 5.0]}, "a", "b")
        self.assertAlmostEqual(result["mean"], -4 / 3)
        self.assertAlmostEqual(result["standard_error"], 1 / 3)

    def test_training_learns(self):
        """Bytes that follow each other in a circle, and the same losses from the same seed."""
        size = train_text.Size(replace(TINY, vocabulary=256, mode="full"), 16, 4, 30, 2)
        text = torch.arange(3000).remainder(50).to(torch.uint8)
        starts = torch.randint(2000, (30, 4), generator=torch.Generator().manual_seed(1))
        with mock.patch("train_text.PEAK_RATE", 0.02):
            runs = [train_text.Training(size.config, size, 1, text.device) for _ in range(2)]
            one, other = (run.run(text, starts) for run in runs)
        self.assertEqual(one, other)
        self.assertLess(one[-1], 0.5 * one[0])
        self.assertLess(runs[0].validate(text, starts[:2]), 0.5 * one[0])

    def test_depth_weights_of_a_model(self):
        model = stirred(tiny(mode="full", routing_heads=4))
        weights = train_text.mean_depth_weights(model, tokens())
        self.assertEqual([len(rows) for rows in weights], list(range(1, 10)))
        torch.testing.assert_close(torch.tensor(weights[8]).sum(0), torch.ones(4))
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/text.json", "w", encoding="utf-8") as file:
                json.dump({"depth_weights": {"H4": weights}}, file)
            plot_depth.main(f"{folder}/text.json", f"{folder}/heads.svg")
            cells = ElementTree.parse(f"{folder}/heads.svg").iter("{http://www.w3.org/2000/svg}rect")
            self.assertEqual(sum(cell.get("width") == "1" for cell in cells), 4 * 45)


if __name__ == "__main__":
    unittest.main()
