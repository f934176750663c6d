// SPDX-License-Identifier: Apache-2.0
//! Folding of one site: what depends on parameters alone.
#pragma once

#include <mhar/cpu/detail/dots.hpp>
#include <mhar/cpu/detail/typed.hpp>
#include <mhar/types/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu::detail {

//! factor * <query_h, key(null)_h> for every head.
template <class T, class Key = plain_key>
void null_scores(const shape& extent, const accumulate_t<T>* query,
                 const accumulate_t<T>* null_source, accumulate_t<T> factor, const Key& key,
                 accumulate_t<T>* scores) noexcept
{
  const std::int64_t width = extent.head_width();
  for (int h = 0; h < extent.num_heads; ++h) {
    dots(&query, 1, row_range<accumulate_t<T>>{&null_source, 1}, columns{h * width, width},
         scores + h, 1, key);
    scores[h] *= factor;
  }
}

//! What keys that are rounded twice meet instead of a folded query; null for other keys.
template <class Accumulate>
struct unfolded_site
{
  Accumulate* query = nullptr;        //!< [d] scale * q
  Accumulate* norm_weight = nullptr;  //!< [d] g
};

//! Writes call `call` of the folded sites.
template <class T>
void fold_site(const shape& extent, const site_parameters& site, const const_array& gate,
               int num_sources, int num_rows, const folded_sites<accumulate_t<T>>& folded, int call,
               const unfolded_site<accumulate_t<T>>& unfolded = {}) noexcept
{
  using accumulate = accumulate_t<T>;
  const std::int64_t width = extent.width;
  const auto scale = static_cast<accumulate>(site.scale);
  const auto element_of_array = [](const const_array& from, std::int64_t k) {
    return mhar::load<accumulate>(from.data, from.type, k);
  };

  accumulate* const query = folded.query + call * width;
  for (std::int64_t k = 0; k < width; ++k) {
    const accumulate weight =
        site.norm_weight ? element_of_array(site.norm_weight, k) : accumulate{1};
    const accumulate scaled = scale * element_of_array(site.query, k);
    query[k] = scaled * weight;
    if (unfolded.query != nullptr) {
      unfolded.query[k] = scaled;
      unfolded.norm_weight[k] = weight;
    }
  }

  const int has_null = site.null_source ? 1 : 0;
  if (folded.bias != nullptr) {
    accumulate* const bias = folded.bias + call * folded.bias_stride;
    for (int n = 0; n < num_rows; ++n) {
      const bool given = site.bias && n + has_null < num_sources;
      bias[n] = given ? element_of_array(site.bias, n + has_null) : accumulate{0};
    }
  }
  if (has_null == 1) {
    accumulate* const null_source = folded.null_source + call * width;
    accumulate* const logits = folded.null_logit + call * extent.num_heads;
    read(null_source, site.null_source, width);
    const accumulate inverse =
        inverse_rms<accumulate>(null_source, width, static_cast<accumulate>(site.eps));
    switch (site.rounding) {
      case key_rounding::none:
        null_scores<T>(extent, query, null_source, inverse, plain_key{}, logits);
        break;
      case key_rounding::storage:
        null_scores<T>(extent, query, null_source, accumulate{1}, rounded_key<T>{&inverse}, logits);
        break;
      default:
        null_scores<T>(extent, unfolded.query, null_source, accumulate{1},
                       twice_rounded_key<T>{&inverse, unfolded.norm_weight}, logits);
        break;
    }
    for (int h = 0; site.bias && h < extent.num_heads; ++h) {
      logits[h] += element_of_array(site.bias, 0);
    }
  }
  folded.gate[call] = gate ? element_of_array(gate, 0) : accumulate{1};
  folded.logit_gate[call] = num_sources == 1 ? accumulate{0} : folded.gate[call];
}

}  // namespace cpu::detail
MHAR_NAMESPACE_END
