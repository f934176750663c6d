// SPDX-License-Identifier: Apache-2.0
//! What follows a mix at one position: gate, partial, output norm, and the stores.
#pragma once

#include <mhar/cpu/detail/arena.hpp>
#include <mhar/cpu/detail/combine.hpp>
#include <mhar/cpu/detail/typed.hpp>
#include <mhar/types/call.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! An output stage with its parameters read, and room for one position.
template <class Accumulate>
struct finisher
{
  finisher(arena& memory, std::int64_t width)
      : partial{memory.take<Accumulate>(width)}, norm_weight{memory.take<Accumulate>(width)}
  {
  }

  //! Once per task, before the first position.
  void prepare(const output_stage& from, std::int64_t width) noexcept
  {
    stage = from;
    gate = from.gate ? mhar::load<Accumulate>(from.gate.data, from.gate.type, 0) : Accumulate{1};
    if (from.norm_weight) { read(norm_weight, from.norm_weight, width); }
  }

  output_stage stage;
  Accumulate gate = 1;
  Accumulate* partial;      // [d]
  Accumulate* norm_weight;  // [d]
};

//! o = partial + alpha * mix in place. alpha == 0 selects the partial itself, whatever the mix holds.
template <class Accumulate>
void combine_partial(const finisher<Accumulate>& with, std::int64_t position, Accumulate* mix,
                     std::int64_t width) noexcept
{
  if (with.stage.partial) { read(with.partial, with.stage.partial, position, width); }
  for (std::int64_t k = 0; k < width; ++k) {
    const Accumulate partial = with.stage.partial ? with.partial[k] : Accumulate{0};
    mix[k] = with.gate == 0       ? partial
             : with.stage.partial ? partial + with.gate * mix[k]
                                  : with.gate * mix[k];
  }
}

//! From a position's mix, which is overwritten, to everything that a call writes at it but lse and weights.
template <class Accumulate, class T>
void finish_position(const finisher<Accumulate>& with, const route_outputs<T>& outputs,
                     std::int64_t position, Accumulate* mix, std::int64_t width) noexcept
{
  if (outputs.mix) { write(outputs.mix, position, mix, width); }
  if (!outputs.combined && !outputs.y) { return; }
  combine_partial(with, position, mix, width);
  if (outputs.combined) { write(outputs.combined, position, mix, width); }
  if (!outputs.y) { return; }
  if (with.stage.norm == output_norm::rms) {
    const auto eps = static_cast<Accumulate>(with.stage.norm_eps);
    const Accumulate inverse = inverse_rms<Accumulate>(mix, width, eps);
    for (std::int64_t k = 0; k < width; ++k) {
      mix[k] = with.stage.norm_weight ? mix[k] * inverse * with.norm_weight[k] : mix[k] * inverse;
    }
  }
  write(outputs.y, position, mix, width);
}

}  // namespace cpu::detail
MHAR_NAMESPACE_END
