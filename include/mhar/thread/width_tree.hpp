// SPDX-License-Identifier: Apache-2.0
//! The one tree in which sums over the width are formed, so that a position's bits depend on nothing but its shape.
//!
//!   chunk   up to chunk_width<T> consecutive columns of one head, added in order
//!   group   `group` consecutive chunks of one head (a power of two), added as a butterfly: lane l and lane l ^ group/2, ..., l ^ 1
//!   span    `depth` groups in a row, 1 unless a group has 32 chunks: each lane first adds its `depth` chunks in order
//!   head    its spans dealt to `lanes_per_head` lanes in turn, each lane's added in order, the lanes added as a butterfly
//!   row     all its spans dealt to 32 lanes in turn, likewise
//!
//! However many threads carry a position, they carry whole spans, and the sums come out the same.
#pragma once

#include <mhar/types/shape.hpp>

MHAR_NAMESPACE_BEGIN
namespace thread {

struct width_tree
{
  int width;
  int num_heads;
  int head_width;
  int chunks_per_head;
  int num_chunks;
  int group;  //!< chunks per group: the largest power of two up to 32 that divides chunks_per_head
  int groups_per_head;
  int num_groups;
  int lanes_per_head;  //!< a power of two: 32 lanes serve as many heads at a time as they can

  int depth;  //!< groups per span: deepest(num_chunks) where whole spans fit a head, else 1
  int spans_per_head;
  int num_spans;
  int group_shift;  //!< logarithms, since a division by a power of two that is not known to be one is slow
  int span_shift;
  int lanes_shift;

  //! Columns of chunk c: [first_column(c), first_column(c) + columns(c)).
  [[nodiscard]] MHAR_HOST_DEVICE constexpr int head_of(int chunk) const noexcept
  {
    return chunk / chunks_per_head;
  }
  [[nodiscard]] MHAR_HOST_DEVICE constexpr int first_column(int chunk,
                                                            int chunk_width) const noexcept
  {
    const int head = head_of(chunk);
    return head * head_width + (chunk - head * chunks_per_head) * chunk_width;
  }
  [[nodiscard]] MHAR_HOST_DEVICE constexpr int columns(int chunk, int chunk_width) const noexcept
  {
    const int left = head_width - (chunk - head_of(chunk) * chunks_per_head) * chunk_width;
    return left < chunk_width ? left : chunk_width;
  }
};

//! Chunks that one lane takes of a row: more of them need fewer sums across lanes, fewer keep more threads at work.
[[nodiscard]] MHAR_HOST_DEVICE constexpr int deepest(int num_chunks) noexcept
{
  return num_chunks <= 160 ? 1 : num_chunks <= 896 ? 2 : 4;
}

//! The tree of a shape whose width is below 2^31.
[[nodiscard]] MHAR_HOST_DEVICE constexpr width_tree make_width_tree(const shape& extent,
                                                                    int chunk_width) noexcept
{
  width_tree tree{};
  tree.width = static_cast<int>(extent.width);
  tree.num_heads = extent.num_heads;
  tree.head_width = static_cast<int>(extent.head_width());
  tree.chunks_per_head = (tree.head_width + chunk_width - 1) / chunk_width;
  tree.num_chunks = tree.num_heads * tree.chunks_per_head;
  tree.group = 1;
  while (tree.group < 32 && tree.chunks_per_head % (2 * tree.group) == 0) { tree.group *= 2; }
  tree.groups_per_head = tree.chunks_per_head / tree.group;
  tree.num_groups = tree.num_heads * tree.groups_per_head;
  tree.lanes_per_head = 32;
  while (tree.lanes_per_head > 1 && tree.lanes_per_head * tree.num_heads > 32) {
    tree.lanes_per_head /= 2;
  }
  const int depth = deepest(tree.num_chunks);
  tree.depth = tree.group == 32 && tree.groups_per_head % depth == 0 ? depth : 1;
  tree.spans_per_head = tree.groups_per_head / tree.depth;
  tree.num_spans = tree.num_groups / tree.depth;
  while ((1 << tree.group_shift) < tree.group) { ++tree.group_shift; }
  while ((1 << tree.span_shift) < tree.group * tree.depth) { ++tree.span_shift; }
  while ((1 << tree.lanes_shift) < tree.lanes_per_head) { ++tree.lanes_shift; }
  return tree;
}

}  // namespace thread
MHAR_NAMESPACE_END
