// `air::onednn_bmm(x, y)`: float32 matrices multiplied by oneDNN, which torch asks for bfloat16 only.
//
// MKL may leave half of the vector unit idle where the processor is not Intel's. Results differ from `aten::bmm` in the
// last bits, so that nobody gets this operator who has not asked for it (npucompose_replay/products/batched.py).

#include "onednn.h"

#include <utility>

#include <ATen/ops/empty.h>

namespace at::native {
// ATen/native/mkldnn/Matmul.h, which torch's wheels do not carry; null in a torch without oneDNN.
__attribute__((weak)) void mkldnn_matmul(
    const at::Tensor& x, const at::Tensor& y, const at::Tensor& out, float beta, float alpha);
}  // namespace at::native

namespace npucompose {
namespace {

constexpr auto kName = "air::onednn_bmm";

at::Tensor result_for(const at::Tensor& x, const at::Tensor& y) {
  TORCH_CHECK(
      x.dim() == 3 && y.dim() == 3 && x.size(0) == y.size(0) && x.size(2) == y.size(1), kName, ": matrices of ", x.sizes(),
      " and ", y.sizes(), " cannot be multiplied");
  TORCH_CHECK(
      x.scalar_type() == at::kFloat && y.scalar_type() == at::kFloat, kName, ": float32 matrices are multiplied, given ",
      x.scalar_type(), " and ", y.scalar_type());
  return at::empty({x.size(0), x.size(1), y.size(2)}, x.options());
}

// A transposed matrix whose columns do not follow one another in memory, as a key's do where heads lie side by side, is
// multiplied by oneDNN at less than half the speed (16 heads of 128 by 128 rows of 64 on a Zen 5: 383 us, copied 177).
at::Tensor densely(const at::Tensor& y) {
  const bool turned = y.stride(1) == 1 && y.stride(2) != 1, apart = y.stride(2) != y.size(1);
  return turned && apart ? y.transpose(1, 2).contiguous().transpose(1, 2) : y;
}

at::Tensor onednn_bmm(const at::Tensor& x, const at::Tensor& y) {
  const at::Tensor out = result_for(x, y);
  multiply(x, y, out);
  return out;
}

// Into memory that is given.
class OneDnn final : public Kernel {
 public:
  OneDnn(at::Tensor x, at::Tensor y, at::Tensor out) : x_(std::move(x)), y_(std::move(y)), out_(std::move(out)) {}
  void run() override { multiply(x_, y_, out_); }

 private:
  const at::Tensor x_, y_, out_;
};

}  // namespace

void multiply(const at::Tensor& x, const at::Tensor& y, const at::Tensor& out, double scale) {
  if (!out.numel()) return;
  if (!x.numel()) out.zero_();
  else at::native::mkldnn_matmul(x, densely(y), out, 0.f, static_cast<float>(scale));
}

// Not by a macro: two builds of this extension may be loaded in one process, and an operator is defined once.
bool define_onednn() {
  if (!at::native::mkldnn_matmul) return false;
  static const bool defined = [] {
    if (c10::Dispatcher::singleton().findSchema({kName, ""})) return true;
    static torch::Library library(torch::Library::FRAGMENT, "air", std::nullopt, __FILE__, __LINE__);
    library.def("onednn_bmm(Tensor x, Tensor y) -> Tensor");
    library.impl("onednn_bmm", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(onednn_bmm)));
    library.impl("onednn_bmm", torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(result_for)));
    define_attention(library);
    return true;
  }();
  return defined;
}

KernelPtr onednn_kernel(const c10::OperatorHandle& op, const Stack& args, const at::Tensor& out) {
  if (KernelPtr attention = attention_kernel(op, args, out)) return attention;
  if (op.operator_name().name != kName || !args.at(0).isTensor() || !args.at(1).isTensor()) return nullptr;
  const at::Tensor& x = args[0].toTensor();
  const at::Tensor& y = args[1].toTensor();
  const bool fits = out.scalar_type() == at::kFloat && out.is_contiguous() && out.dim() == 3 && out.size(0) == x.size(0) &&
      out.size(1) == x.size(1) && out.size(2) == y.size(2);
  return fits ? std::make_unique<OneDnn>(x, y, out) : nullptr;
}

}  // namespace npucompose
