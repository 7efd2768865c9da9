// `air::onednn_attention`: attention of float32 heads whose two products oneDNN computes.
//
// torch's own kernel (aten::_scaled_dot_product_flash_attention_for_cpu) multiplies by MKL, which may leave half of
// the vector unit idle where the processor is not Intel's. Here as many heads, or rows of one head, as have four
// mebibytes of scores go together: query · keyᵀ, softmax, · value. Results differ from torch's in the last bits, so
// that nobody gets this operator who has not asked for it (npucompose_replay/products/attention.py).

#include "onednn.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ops/_softmax.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>

namespace npucompose {
namespace attention {
namespace {

constexpr auto kName = "air::onednn_attention";
constexpr int64_t kScores = 1 << 20;  // of a block, in elements: oneDNN lays out a key anew for each block of rows
constexpr int64_t kRows = 16;         // of a block at least, and a multiple of it
constexpr float kHidden = -std::numeric_limits<float>::infinity();

using Mask = std::optional<at::Tensor>;

void check(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Mask& mask) {
  for (const at::Tensor& one : {query, key, value})
    TORCH_CHECK(
        one.dim() == 4 && one.scalar_type() == at::kFloat, kName, ": float32 of [batch, heads, rows, size], given ",
        one.sizes(), " ", one.scalar_type());
  TORCH_CHECK(
      query.sizes().slice(0, 2) == key.sizes().slice(0, 2) && query.size(3) == key.size(3) &&
          key.sizes() == value.sizes(),
      kName, ": a query of ", query.sizes(), " does not fit a key of ", key.sizes(), " and a value of ", value.sizes());
  TORCH_CHECK(!mask || mask->scalar_type() == at::kFloat, kName, ": a mask is added, and float32");
}

at::Tensor result_for(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Mask& mask, bool, double) {
  check(query, key, value, mask);
  return at::empty_like(query);
}

float* scratch(int64_t elements) {
  static thread_local std::unique_ptr<float, decltype(&std::free)> memory(nullptr, &std::free);
  static thread_local int64_t size = 0;
  if (size < elements) {
    memory.reset(static_cast<float*>(std::aligned_alloc(64, (elements * sizeof(float) + 63) / 64 * 64)));
    TORCH_CHECK_WITH(OutOfMemoryError, memory, kName, ": no memory for ", elements, " scores");
    size = elements;
  }
  return memory.get();
}

// Heads and rows that are computed together; all are views of [heads, rows, size].
struct Block {
  at::Tensor query, key, value, mask, out;  // `key` is transposed, `mask` undefined where there is none
  int64_t first_row = 0;

  void run(bool causal, double scale) const {
    const int64_t heads = query.size(0), rows = query.size(1), columns = key.size(2);
    float* const memory = scratch(heads * rows * columns);
    at::Tensor scores = at::from_blob(memory, {heads, rows, columns}, query.options());
    multiply(query, key, scores, scale);
    if (mask.defined()) scores.add_(mask);
    if (causal) hide_later(memory, heads, rows, columns);
    at::_softmax_out(scores, scores, 2, false);
    for (int64_t row = 0; row < heads * rows; ++row) {
      float* const weights = memory + row * columns;
      if (weights[0] != weights[0] && sees_nothing(row / rows, row % rows, causal, scale))
        std::fill(weights, weights + columns, 0.f);
    }
    multiply(scores, value, out);
  }

 private:
  void hide_later(float* scores, int64_t heads, int64_t rows, int64_t columns) const {
    for (int64_t row = 0; row < heads * rows; ++row) {
      const int64_t seen = std::min(columns, first_row + row % rows + 1);
      std::fill(scores + row * columns + seen, scores + (row + 1) * columns, kHidden);
    }
  }

  // Such a row's result is 0, as torch's kernel has it; a row with a score that is no number has none.
  bool sees_nothing(int64_t head, int64_t row, bool causal, double scale) const {
    at::Tensor scores = at::matmul(query[head][row], key[head]).mul_(scale);
    if (mask.defined()) scores.add_(mask[head][row]);
    if (causal) scores = scores.narrow(0, 0, std::min(scores.size(0), first_row + row + 1));
    return scores.eq(kHidden).all().item<bool>();
  }
};

class Attention final : public Kernel {
 public:
  Attention(
      const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Mask& mask, bool causal,
      double scale, const at::Tensor& out)
      : causal_(causal), scale_(scale) {
    const int64_t heads = query.size(1), rows = query.size(2), columns = key.size(2);
    if (!out.numel()) return;
    if (!columns) {
      nothing_ = out;
      return;
    }
    const int64_t of_head = rows * columns;
    const int64_t group = std::clamp<int64_t>(kScores / of_head, 1, heads);
    const int64_t height = of_head <= kScores ? rows : std::max(kRows, kScores / columns / kRows * kRows);
    const at::Tensor hidden = mask ? mask->expand({query.size(0), heads, rows, columns}) : at::Tensor();
    for (int64_t batch = 0; batch < query.size(0); ++batch)
      for (int64_t head = 0; head < heads; head += group)
        for (int64_t row = 0; row < rows; row += height) {
          const int64_t end = std::min(row + height, rows), seen = causal ? std::min(columns, end) : columns;
          const auto part = [&](const at::Tensor& of, int64_t first, int64_t last) {
            return of[batch].narrow(0, head, std::min(group, heads - head)).narrow(1, first, last - first);
          };
          blocks_.push_back(
              {part(query, row, end), part(key, 0, seen).transpose(1, 2), part(value, 0, seen),
               mask ? part(hidden, row, end).narrow(2, 0, seen) : at::Tensor(), part(out, row, end), row});
        }
  }

  void run() override {
    if (nothing_.defined()) nothing_.zero_();
    for (const Block& block : blocks_) block.run(causal_, scale_);
  }

 private:
  const bool causal_;
  const double scale_;
  at::Tensor nothing_;  // a result that no key is summed for
  std::vector<Block> blocks_;
};

at::Tensor onednn_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Mask& mask, bool causal,
    double scale) {
  const at::Tensor out = result_for(query, key, value, mask, causal, scale);
  Attention(query, key, value, mask, causal, scale, out).run();
  return out;
}

}  // namespace
}  // namespace attention

void define_attention(torch::Library& library) {
  library.def(
      "onednn_attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool causal, float scale) -> Tensor");
  library.impl("onednn_attention", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(attention::onednn_attention)));
  library.impl("onednn_attention", torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(attention::result_for)));
}

KernelPtr attention_kernel(const c10::OperatorHandle& op, const Stack& args, const at::Tensor& out) {
  if (op.operator_name().name != attention::kName) return nullptr;
  const at::Tensor& query = args.at(0).toTensor();
  if (out.scalar_type() != at::kFloat || out.sizes() != query.sizes() || out.stride(3) != 1) return nullptr;
  return std::make_unique<attention::Attention>(
      query, args.at(1).toTensor(), args.at(2).toTensor(), args.at(3).toOptional<at::Tensor>(), args.at(4).toBool(),
      args.at(5).toDouble(), out);
}

}  // namespace npucompose
