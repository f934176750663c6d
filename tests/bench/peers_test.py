# SPDX-License-Identifier: Apache-2.0
"""The peers of the benchmarks on the CPU: formulas in float64, the Triton kernels in Triton's interpreter."""
import itertools
import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "peers"))
os.environ["TRITON_INTERPRET"] = "1"

try:
    import numpy
    import torch

    import paper
    import shapes
    from einsum import EPS, attend, attend_in_sums
    from errors import errors_of
    from work import AutogradChain, DeltaCalls, make_inputs
except ImportError as error:
    print(f"mhar: skipped (no {error.name})")
    sys.exit()


def routed_in_loops(rows, query, norm_weight, num_heads):
    """The operator's equations, one number at a time."""
    num_rows, num_positions, width = rows.shape
    head_width = width // num_heads
    out = torch.zeros(num_positions, width, dtype=rows.dtype)
    for p in range(num_positions):
        for h in range(num_heads):
            head = range(h * head_width, (h + 1) * head_width)
            logits = []
            for n in range(num_rows):
                rms = (sum(rows[n, p, i] ** 2 for i in range(width)) / width + EPS) ** 0.5
                logits.append(sum(query[i] * norm_weight[i] * rows[n, p, i] for i in head) / rms)
            shares = [torch.exp(x - max(logits)) for x in logits]
            for i in head:
                out[p, i] = sum(a * rows[n, p, i] for n, a in enumerate(shares)) / sum(shares)
    return out


def interpreted(test):
    """Triton 3.6 converts arrays of one element to numbers, which numpy refuses from 2.4 on."""
    old = tuple(map(int, numpy.__version__.split(".")[:2])) < (2, 4)
    return unittest.skipUnless(old, "no numpy older than 2.4")(test)


class Peers(unittest.TestCase):
    def chain(self, num_rows, num_positions, width, num_heads):
        shape = shapes.Shape("", num_rows, num_positions, width, num_heads)
        return shape, make_inputs(shape, "cpu", torch.float32)

    def exact_chain(self, shape):
        return lambda inputs: AutogradChain(shape, inputs, attend)

    def test_attend_is_the_equation(self):
        torch.manual_seed(1)
        for extent, num_heads in (((1, 2, 6), 2), ((5, 3, 12), 3), ((4, 2, 8), 1)):
            rows = torch.randn(extent, dtype=torch.float64)
            query, norm_weight = torch.randn(2, extent[-1], dtype=torch.float64)
            expected = routed_in_loops(rows, query, norm_weight, num_heads)
            for function in (attend, attend_in_sums):
                torch.testing.assert_close(function(rows, query, norm_weight, num_heads), expected)

    @interpreted
    def test_kernels_agree_with_float64(self):
        cases = ((1, 2, 3), 3, 12, 2), ((1, 2, 3, 4), 2, 20, 4), ((18,), 5, 7, 1), ((3, 5), 2, 8, 8)
        for positions, case in itertools.product((1, 2), cases):
            paper.DEFAULT["POSITIONS"] = positions
            shape, inputs = self.chain(*case)
            errors = errors_of(paper.PaperChain(shape, inputs), shape, inputs, self.exact_chain(shape))
            self.assertLess(max(errors.values()), 1e-5, (positions, case))

    @interpreted
    def test_delta_calls_agree_with_float64(self):
        shape, inputs = self.chain((4,), 3, 16, 2)
        exact = lambda x: DeltaCalls(shape, x, lambda rows, q, g, heads, partial: attend(rows, q, g, heads) + partial)
        errors = errors_of(DeltaCalls(shape, inputs, paper.PaperCall.apply), shape, inputs, exact)
        self.assertLess(max(errors.values()), 1e-5)

    def test_another_function_is_found(self):
        shape, inputs = self.chain((1, 2, 3), 4, 8, 2)
        wrong = AutogradChain(shape, inputs, lambda rows, q, g, heads: attend(rows, q, g, 1))
        self.assertGreater(errors_of(wrong, shape, inputs, self.exact_chain(shape))["output_error"], 0.1)


if __name__ == "__main__":
    unittest.main()
