# SPDX-License-Identifier: Apache-2.0
"""Reading and comparing result files, the figures where matplotlib is there, and that peers do the same work."""
import contextlib
import io
import json
import pathlib
import re
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "peers")]

import compare
import shapes
from results import failures, load


def aggregates(name, median, deviation, unit="us"):
    entry = {"run_name": name, "run_type": "aggregate", "time_unit": unit}
    return [entry | {"aggregate_name": "median", "real_time": median}, entry | {"aggregate_name": "stddev", "real_time": deviation}]


class Names(unittest.TestCase):
    def test_shapes_are_those_of_the_cpp_benchmarks(self):
        header = (ROOT / "bench" / "support" / "shapes.hpp").read_text(encoding="utf-8")
        numbers = lambda text: tuple(int(x) for x in re.findall(r"\d+", text))
        listed = re.search(r"chain_shapes\[\] = \{(.*?)\};", header, re.DOTALL).group(1)  # peers end no call with a norm
        chains = [(name, *numbers(rest)) for name, rest in re.findall(r'\{"(chain/[^"]+)",([^}]+)\}', listed)]
        self.assertEqual(chains, [(s.name, len(s.num_rows), s.num_positions, s.width, s.num_heads) for s in shapes.CHAINS])
        for array, ours in (("call_shapes", shapes.CALLS), ("decode_shapes", shapes.DECODES)):
            listed = re.search(array + r"\[\] = \{(.*?)\};", header, re.DOTALL).group(1)
            calls = [numbers(call) for call in re.findall(r"\{([^}]+)\}", listed)]
            self.assertEqual(calls, [(s.num_rows[0], s.width, s.num_heads, s.num_positions) for s in ours])


class Results(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, *benchmarks):
        path = pathlib.Path(self.folder.name) / f"{len(list(pathlib.Path(self.folder.name).iterdir()))}.json"
        path.write_text(json.dumps({"context": {}, "benchmarks": benchmarks}), encoding="utf-8")
        return str(path)

    def test_names_are_the_registered_ones_and_times_microseconds(self):
        single = {"run_name": "b/x/iterations:1/repeats:1", "run_type": "iteration", "time_unit": "ns", "real_time": 3000.0}
        failed = {"run_name": "c", "run_type": "iteration", "error_occurred": True, "error_message": "out of memory"}
        path = self.file(*aggregates("chain/1B/manual_time", 2.0, 0.5, "ms"), single, failed)
        entries = load(path)
        self.assertEqual(failures(path), {"c": "out of memory"})
        self.assertEqual({name: (e.time, e.deviation) for name, e in entries.items()}, {"chain/1B": (2000, 500), "b/x": (3, 0)})

    def test_repetitions_without_aggregates(self):
        run = {"run_name": "a", "run_type": "iteration", "time_unit": "us"}
        entry = load(self.file(*(run | {"real_time": time} for time in (1.0, 3.0, 2.0))))["a"]
        self.assertEqual((entry.time, entry.deviation), (2.0, 1.0))

    def test_what_moved_is_more_than_the_spread(self):
        before = self.file(*aggregates("still", 100, 2), *aggregates("slower", 100, 2), *aggregates("gone", 1, 0))
        after = self.file(*aggregates("still", 107, 2), *aggregates("slower", 109, 2), *aggregates("new", 1, 0))
        self.assertEqual([name for name, *_ in compare.moved(load(before), load(after))], ["slower"])
        output = io.StringIO()
        with mock.patch.object(sys, "argv", ["compare.py", before, after]), contextlib.redirect_stdout(output):
            compare.main()
        for text in ("slower", "1.090", "only before: gone", "only after: new"):
            self.assertIn(text, output.getvalue())
        self.assertNotIn("still", output.getvalue())

    def test_a_file_did_not_move_against_itself(self):
        # Results of training are files of another kind.
        paths = [p for p in (ROOT / "bench" / "results").glob("*.json") if "benchmarks" in json.loads(p.read_text())]
        self.assertGreaterEqual(len(paths), 3)
        for path in paths:
            entries = load(path)
            self.assertTrue(entries)
            self.assertEqual(list(compare.moved(entries, entries)), [])

    def test_figures_are_drawn(self):
        try:
            import plot
        except ImportError:
            self.skipTest("no matplotlib")
        with mock.patch.object(sys, "argv", ["plot.py", "--out", self.folder.name]):
            plot.main()
        self.assertEqual(sorted(path.name for path in pathlib.Path(self.folder.name).glob("*.svg")),
                         ["copy-share.svg", "depth.svg", "memory.svg", "positions.svg"])


if __name__ == "__main__":
    unittest.main()
