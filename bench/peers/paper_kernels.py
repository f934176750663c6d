# SPDX-License-Identifier: Apache-2.0
"""The published algorithm in Triton, written from the paper's description (Multi-Head Attention Residuals, appendix E).

Forward: a program holds the [H, K] accumulators of its positions, goes over the rows once, computes norm and logits on the fly
with the normalised key rounded to the storage type, and saves the weights [N, P, H]. Backward: one kernel recomputes the norms,
reads the rows twice (first for sum_n a_n <do, s_n>, then for the gradients), stores or adds the rows' gradients in place and
leaves partial sums of dw per program. One position per program is the paper's; POSITIONS is tuned besides warps and stages.
"""
import triton
import triton.language as tl


@triton.jit
def _folded_query(query, norm_weight, at, inside):
    q = tl.load(query + at, mask=inside, other=0.0).to(tl.float32)
    return q * tl.load(norm_weight + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _inverse_rms(s, eps, WIDTH: tl.constexpr):
    return tl.rsqrt(tl.sum(tl.sum(s * s, 2), 1) / WIDTH + eps)


@triton.jit(do_not_specialize=["num_rows"])
def forward_kernel(rows, query, norm_weight, partial, out, weights, num_rows, num_positions, eps,
                   HEADS: tl.constexpr, HEAD_WIDTH: tl.constexpr, LANES: tl.constexpr, SAVES: tl.constexpr,
                   ADDS_PARTIAL: tl.constexpr, POSITIONS: tl.constexpr, STAGES: tl.constexpr):
    WIDTH: tl.constexpr = HEADS * HEAD_WIDTH
    position = tl.program_id(0).to(tl.int64) * POSITIONS + tl.arange(0, POSITIONS)
    head = tl.arange(0, HEADS)
    lane = tl.arange(0, LANES)
    feature = (head * HEAD_WIDTH)[None, :, None] + lane[None, None, :]
    at = position[:, None, None] * WIDTH + feature
    real = position < num_positions
    inside = (lane < HEAD_WIDTH)[None, None, :]
    mask = real[:, None, None] & inside
    w = _folded_query(query, norm_weight, feature, inside)
    weight_at = position[:, None] * HEADS + head[None, :]

    maximum = tl.full([POSITIONS, HEADS], -1e30, tl.float32)
    total = tl.zeros([POSITIONS, HEADS], tl.float32)
    mix = tl.zeros([POSITIONS, HEADS, LANES], tl.float32)
    for n in tl.range(0, num_rows, num_stages=STAGES):
        plane = tl.cast(n, tl.int64) * num_positions
        s = tl.load(rows + plane * WIDTH + at, mask=mask, other=0.0).to(tl.float32)
        key = (s * _inverse_rms(s, eps, WIDTH)[:, None, None]).to(rows.dtype.element_ty).to(tl.float32)
        logit = tl.sum(key * w, 2)
        if SAVES:
            tl.store(weights + plane * HEADS + weight_at, logit, mask=real[:, None])
        larger = tl.maximum(maximum, logit)
        shrink = tl.exp(maximum - larger)
        share = tl.exp(logit - larger)
        mix = mix * shrink[:, :, None] + share[:, :, None] * s
        total = total * shrink + share
        maximum = larger

    result = mix / total[:, :, None]
    if ADDS_PARTIAL:
        result += tl.load(partial + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, result, mask=mask)
    if SAVES:
        # Only now is the sum of a softmax known; what other threads of the program wrote is read back.
        tl.debug_barrier()
        for first in tl.range(0, num_rows, 16):
            some = first + tl.arange(0, 16)
            there = (some < num_rows)[:, None, None] & real[None, :, None]
            saved = weights + some.to(tl.int64)[:, None, None] * num_positions * HEADS + weight_at[None, :, :]
            scaled = tl.exp(tl.load(saved, mask=there, other=0.0) - maximum[None, :, :])
            tl.store(saved, scaled / total[None, :, :], mask=there)


@triton.jit(do_not_specialize=["num_rows"])
def backward_kernel(rows, query, norm_weight, out_gradient, weights, row_gradients, folded_gradient, num_rows, num_positions,
                    eps, HEADS: tl.constexpr, HEAD_WIDTH: tl.constexpr, LANES: tl.constexpr, ADDS: tl.constexpr,
                    POSITIONS: tl.constexpr, STAGES: tl.constexpr):
    WIDTH: tl.constexpr = HEADS * HEAD_WIDTH
    position = tl.program_id(0).to(tl.int64) * POSITIONS + tl.arange(0, POSITIONS)
    head = tl.arange(0, HEADS)
    lane = tl.arange(0, LANES)
    feature = (head * HEAD_WIDTH)[None, :, None] + lane[None, None, :]
    at = position[:, None, None] * WIDTH + feature
    real = position < num_positions
    inside = (lane < HEAD_WIDTH)[None, None, :]
    mask = real[:, None, None] & inside
    w = _folded_query(query, norm_weight, feature, inside)
    weight_at = position[:, None] * HEADS + head[None, :]
    do = tl.load(out_gradient + at, mask=mask, other=0.0).to(tl.float32)

    mean = tl.zeros([POSITIONS, HEADS], tl.float32)
    for n in tl.range(0, num_rows, num_stages=STAGES):
        plane = tl.cast(n, tl.int64) * num_positions
        s = tl.load(rows + plane * WIDTH + at, mask=mask, other=0.0).to(tl.float32)
        share = tl.load(weights + plane * HEADS + weight_at, mask=real[:, None], other=0.0)
        mean += share * tl.sum(do * s, 2)

    dw = tl.zeros([POSITIONS, HEADS, LANES], tl.float32)
    for n in tl.range(0, num_rows, num_stages=STAGES):
        plane = tl.cast(n, tl.int64) * num_positions
        s = tl.load(rows + plane * WIDTH + at, mask=mask, other=0.0).to(tl.float32)
        share = tl.load(weights + plane * HEADS + weight_at, mask=real[:, None], other=0.0)
        dlogit = share * (tl.sum(do * s, 2) - mean)
        r = _inverse_rms(s, eps, WIDTH)[:, None, None]
        dw += dlogit[:, :, None] * (s * r).to(rows.dtype.element_ty).to(tl.float32)
        dkey = dlogit[:, :, None] * w
        along = tl.sum(tl.sum(dkey * s, 2), 1)[:, None, None]
        gradient = r * dkey - (r * r * r / WIDTH) * along * s + share[:, :, None] * do
        target = row_gradients + plane * WIDTH + at
        if ADDS:
            gradient += tl.load(target, mask=mask, other=0.0)
        tl.store(target, gradient, mask=mask)

    partial_at = tl.program_id(0) * WIDTH + (head * HEAD_WIDTH)[:, None] + lane[None, :]
    tl.store(folded_gradient + partial_at, tl.sum(dw, 0), mask=(lane < HEAD_WIDTH)[None, :])
