// SPDX-License-Identifier: Apache-2.0
//! Products of bfloat16 matrices by a warpgroup, four warps together, whose operands tensor cores read from shared memory
//! themselves (wgmma): the only place that writes them in PTX. They exist in code for 9.0a alone.
#pragma once

#include <mhar/config.hpp>

#include <cstddef>
#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Whether the code being compiled has them; of no meaning to the host.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool has_warpgroups = true;
#else
inline constexpr bool has_warpgroups = false;
#endif

//! An operand in shared memory as the instruction is told of it.
struct operand_place
{
  std::uint32_t low;
  std::uint32_t high;

  //! Lines of 128 or 64 bytes below each other, vector v of line i at v ^ i % 8 or v ^ i / 2 % 4; the sum of a product is over
  //! lines. Wider matrices have several such tiles, `tile` bytes apart.
  template <int LineBytes>
  [[nodiscard]] __device__ __forceinline__ static operand_place across_lines(std::uint32_t address,
                                                                             int tile)
  {
    static_assert(LineBytes == 128 || LineBytes == 64, "as vectors are permuted");
    constexpr std::uint32_t eight_lines = 8 * LineBytes;
    return {of_block(address) | sixteens(tile) << 16,
            eight_lines >> 4 | (LineBytes == 128 ? 1u : 2u) << 30};
  }
  //! 8 x 8 matrices of 128 bytes: the next 8 of what the sum is over are `next` bytes away, the next 8 of what it is not `beside`.
  [[nodiscard]] __device__ __forceinline__ static operand_place matrices(std::uint32_t address,
                                                                         int next, int beside)
  {
    return {of_block(address) | sixteens(next) << 16, sixteens(beside)};
  }

  [[nodiscard]] __device__ __forceinline__ operand_place after(int bytes) const
  {
    return {low + sixteens(bytes), high};
  }
  [[nodiscard]] __device__ __forceinline__ std::uint64_t bits() const
  {
    return std::uint64_t{high} << 32 | low;
  }

private:
  [[nodiscard]] __device__ __forceinline__ static std::uint32_t sixteens(int bytes)
  {
    return static_cast<std::uint32_t>(bytes) >> 4;
  }
  //! Without the part of an address that says which block of the cluster it is of.
  [[nodiscard]] __device__ __forceinline__ static std::uint32_t of_block(std::uint32_t address)
  {
    return (address & 0x3ffffu) >> 4;
  }
};

//! Products run while the warps go on. In front of the first, behind whatever has set its registers.
__device__ __forceinline__ void begin_products()
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
//! Waits for all.
__device__ __forceinline__ void end_products()
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 0;" ::
          : "memory");
#endif
}
//! The compiler moves nothing that sets or reads these sums across.
template <std::size_t Count>
__device__ __forceinline__ void keep_sums(float (&sums)[Count])
{
#pragma unroll
  for (float& sum : sums) { asm volatile("" : "+f"(sum)::"memory"); }
}

//! sum += A * B, A 64 x 16, B 16 x 16, both across their lines. A sum lies in registers as multiply_add_16 has it of every warp's
//! 16 rows, eight columns after the other.
__device__ __forceinline__ void multiply_across(float (&sum)[8], const operand_place& a,
                                                const operand_place& b)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "{.reg .pred p; setp.eq.u32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7"
      "}, %8, %9, p, 1, 1, 1, 1;}"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]),
        "+f"(sum[6]), "+f"(sum[7])
      : "l"(a.bits()), "l"(b.bits()));
#endif
}
//! The same with A in registers, as multiply_add_16 has it of every warp's 16 rows.
__device__ __forceinline__ void multiply_across(float (&sum)[8], const std::uint32_t (&a)[4],
                                                const operand_place& b)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "{.reg .pred p; setp.eq.u32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7"
      "}, {%8,%9,%10,%11}, %12, p, 1, 1, 1;}"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]),
        "+f"(sum[6]), "+f"(sum[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits()));
#endif
}
//! A 64 x 16 along its lines, B 16 x 64 across them.
__device__ __forceinline__ void multiply_along(float (&sum)[32], const operand_place& a,
                                               const operand_place& b)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "{.reg .pred p; setp.eq.u32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
      "}, %32, %33, p, 1, 1, 0, 1;}"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]),
        "+f"(sum[6]), "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]),
        "+f"(sum[12]), "+f"(sum[13]), "+f"(sum[14]), "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]),
        "+f"(sum[18]), "+f"(sum[19]), "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]),
        "+f"(sum[24]), "+f"(sum[25]), "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]), "+f"(sum[29]),
        "+f"(sum[30]), "+f"(sum[31])
      : "l"(a.bits()), "l"(b.bits()));
#endif
}
//! B 16 x 128.
__device__ __forceinline__ void multiply_along(float (&sum)[64], const operand_place& a,
                                               const operand_place& b)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "{.reg .pred p; setp.eq.u32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
      "}, %64, %65, p, 1, 1, 0, 1;}"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]),
        "+f"(sum[6]), "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]),
        "+f"(sum[12]), "+f"(sum[13]), "+f"(sum[14]), "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]),
        "+f"(sum[18]), "+f"(sum[19]), "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]),
        "+f"(sum[24]), "+f"(sum[25]), "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]), "+f"(sum[29]),
        "+f"(sum[30]), "+f"(sum[31]), "+f"(sum[32]), "+f"(sum[33]), "+f"(sum[34]), "+f"(sum[35]),
        "+f"(sum[36]), "+f"(sum[37]), "+f"(sum[38]), "+f"(sum[39]), "+f"(sum[40]), "+f"(sum[41]),
        "+f"(sum[42]), "+f"(sum[43]), "+f"(sum[44]), "+f"(sum[45]), "+f"(sum[46]), "+f"(sum[47]),
        "+f"(sum[48]), "+f"(sum[49]), "+f"(sum[50]), "+f"(sum[51]), "+f"(sum[52]), "+f"(sum[53]),
        "+f"(sum[54]), "+f"(sum[55]), "+f"(sum[56]), "+f"(sum[57]), "+f"(sum[58]), "+f"(sum[59]),
        "+f"(sum[60]), "+f"(sum[61]), "+f"(sum[62]), "+f"(sum[63])
      : "l"(a.bits()), "l"(b.bits()));
#endif
}
//! B 16 x 160.
__device__ __forceinline__ void multiply_along(float (&sum)[80], const operand_place& a,
                                               const operand_place& b)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "{.reg .pred p; setp.eq.u32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
      "}, %80, %81, p, 1, 1, 0, 1;}"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]),
        "+f"(sum[6]), "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]),
        "+f"(sum[12]), "+f"(sum[13]), "+f"(sum[14]), "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]),
        "+f"(sum[18]), "+f"(sum[19]), "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]),
        "+f"(sum[24]), "+f"(sum[25]), "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]), "+f"(sum[29]),
        "+f"(sum[30]), "+f"(sum[31]), "+f"(sum[32]), "+f"(sum[33]), "+f"(sum[34]), "+f"(sum[35]),
        "+f"(sum[36]), "+f"(sum[37]), "+f"(sum[38]), "+f"(sum[39]), "+f"(sum[40]), "+f"(sum[41]),
        "+f"(sum[42]), "+f"(sum[43]), "+f"(sum[44]), "+f"(sum[45]), "+f"(sum[46]), "+f"(sum[47]),
        "+f"(sum[48]), "+f"(sum[49]), "+f"(sum[50]), "+f"(sum[51]), "+f"(sum[52]), "+f"(sum[53]),
        "+f"(sum[54]), "+f"(sum[55]), "+f"(sum[56]), "+f"(sum[57]), "+f"(sum[58]), "+f"(sum[59]),
        "+f"(sum[60]), "+f"(sum[61]), "+f"(sum[62]), "+f"(sum[63]), "+f"(sum[64]), "+f"(sum[65]),
        "+f"(sum[66]), "+f"(sum[67]), "+f"(sum[68]), "+f"(sum[69]), "+f"(sum[70]), "+f"(sum[71]),
        "+f"(sum[72]), "+f"(sum[73]), "+f"(sum[74]), "+f"(sum[75]), "+f"(sum[76]), "+f"(sum[77]),
        "+f"(sum[78]), "+f"(sum[79])
      : "l"(a.bits()), "l"(b.bits()));
#endif
}

//! Takes registers that other warpgroups have given, or gives some, so that each thread of this warpgroup has `Count`. Blocks are
//! compiled for `Before`.
template <int Before, int Count>
__device__ __forceinline__ void change_registers()
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (Count > Before) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
  }
  if constexpr (Count < Before) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
  }
#endif
}

}  // namespace block::detail
MHAR_NAMESPACE_END
