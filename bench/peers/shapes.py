# SPDX-License-Identifier: Apache-2.0
"""The work that is measured, under the names of the C++ benchmarks (bench/support/shapes.hpp, which a test compares)."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Routing calls over shared rows: call c reads rows [0, num_rows[c])."""

    name: str
    num_rows: tuple
    num_positions: int
    width: int
    num_heads: int

    @property
    def row_bytes(self):
        """Of a bfloat16 row."""
        return 2 * self.num_positions * self.width


def _chain(name, num_calls, *extents):
    return Shape(name, tuple(range(1, num_calls + 1)), *extents)


def _call(num_sources, width, num_heads, num_positions):
    name = f"N{num_sources}-d{width}-H{num_heads}-P{num_positions}"
    return Shape(name, (num_sources,), num_positions, width, num_heads)


CHAINS = (
    _chain("chain/100M", 25, 4096, 512, 4),
    _chain("chain/350M", 49, 1024, 1024, 8),
    _chain("chain/1B", 73, 1024, 1280, 8),
    _chain("chain/1B-4k", 73, 4096, 1280, 8),
    _chain("chain/S25", 25, 4096, 1024, 8),
    _chain("chain/S49", 49, 4096, 1024, 8),
    _chain("chain/S97", 97, 4096, 1024, 8),
    _chain("chain/S193", 193, 4096, 1024, 8),
    _chain("chain/S49-P256", 49, 256, 1024, 8),
    _chain("chain/S49-P16384", 49, 16384, 1024, 8),
)
CALLS = (_call(9, 7168, 1, 16384), _call(9, 4096, 8, 8192), _call(37, 1280, 8, 16384), _call(5, 7168, 1, 4096))
DECODES = (_call(9, 7168, 1, 1), _call(9, 7168, 1, 16), _call(9, 7168, 1, 128), _call(9, 7168, 8, 1))
# Eight rows and the null source, of which there is one row only.
DELTA = Shape("delta8B/call", (8,), 8192, 4096, 8)
DELTA_CALLS = 64


def forward_bytes(shape, weights=False):
    """Every call reads its rows and writes its output (and float weights), once each."""
    row_reads = sum(shape.num_rows)
    saved = 4 * shape.num_positions * shape.num_heads * row_reads if weights else 0
    return (row_reads + len(shape.num_rows)) * shape.row_bytes + saved


def backward_bytes(shape, row_reads=1, weights=False):
    """Every call reads its rows `row_reads` times and do once, and writes its rows' gradients: a single call in bfloat16, the
    calls of a chain into a sum that is read first, in bfloat16 or, where weights were saved, in float."""
    reads = sum(shape.num_rows)
    stores = max(shape.num_rows)
    sum_bytes = 2 if weights and len(shape.num_rows) > 1 else 1  # in bfloat16 rows
    gradients = sum_bytes * (2 * reads - stores)
    saved = 4 * shape.num_positions * shape.num_heads * reads if weights else 0
    return (row_reads * reads + len(shape.num_rows) + gradients) * shape.row_bytes + saved


def delta_bytes(shape):
    """Per call: forward twice over rows and partial, backward over rows and do, adding to the rows' gradients."""
    rows = shape.num_rows[0]
    return DELTA_CALLS * (2 * (rows + 2) + rows + 1 + 2 * rows) * shape.row_bytes
