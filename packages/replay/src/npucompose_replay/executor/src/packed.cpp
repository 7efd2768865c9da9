#include "packed.h"

#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "torch_internal.h"
#include "trial.h"

// As torch was linked with them; null in a torch without MKL (cblas_gemm_compute in oneMKL's reference, 32-bit integers).
extern "C" __attribute__((weak)) void cblas_sgemm_compute(
    int layout, int transa, int transb, int m, int n, int k, const float* a, int lda, const float* b, int ldb, float beta,
    float* c, int ldc);
namespace at::native {
__attribute__((weak)) void* data_ptr_from_mkldnn(const at::Tensor& mkldnn_tensor);
}

namespace npucompose {
namespace {

// Rows of x, each multiplied by the weight, plus a bias.
struct Operands {
  at::Tensor x, packed, bias, out;
  int64_t rows = 0, inner = 0, columns = 0;

  // Whether all is float32 and lies row by row.
  bool fits() {
    const auto plain = [](const at::Tensor& t) {
      return t.defined() && t.layout() == at::kStrided && t.scalar_type() == at::kFloat && t.is_contiguous() && t.numel();
    };
    if (!plain(x) || !plain(out) || x.dim() < 2 || !packed.is_mkldnn()) return false;
    if (bias.defined() && (!plain(bias) || bias.dim() != 1)) return false;
    inner = x.size(-1), columns = out.size(-1), rows = x.numel() / inner;
    constexpr int64_t most = std::numeric_limits<int>::max();
    return rows * columns == out.numel() && (!bias.defined() || bias.size(0) == columns) && x.numel() < most &&
        out.numel() < most;
  }

  const float* x_at() const { return x.const_data_ptr<float>(); }
  const float* bias_at() const { return bias.const_data_ptr<float>(); }
  float* out_at() const { return static_cast<float*>(const_cast<void*>(out.const_data_ptr())); }
};

// Null for another operator, for operands that do not fit, and where the weight was packed for another number of rows.
std::optional<Operands> operands_of(const c10::OperatorHandle& op, const Stack& args, const at::Tensor& out) {
  if (op.operator_name().name != "mkl::_mkl_linear" || !args.at(0).isTensor() || !args.at(1).isTensor()) return std::nullopt;
  Operands found;
  found.x = args[0].toTensor(), found.packed = args[1].toTensor(), found.out = out;
  if (args.at(3).isTensor()) found.bias = args[3].toTensor();
  if (!found.fits() || args.at(4).toInt() != found.rows) return std::nullopt;
  return found;
}

// MKL's product with a packed matrix.
class Mkl final : public Kernel {
 public:
  explicit Mkl(Operands operands) : given_(std::move(operands)), packed_(static_cast<float*>(at::native::data_ptr_from_mkldnn(given_.packed))) { moved(); }

  void run() override {
    constexpr int by_rows = 101, as_it_is = 111, is_packed = 151;
    const int m = static_cast<int>(given_.rows), n = static_cast<int>(given_.columns), k = static_cast<int>(given_.inner);
    if (bias_)
      for (int i = 0; i < m; ++i) std::memcpy(out_ + static_cast<size_t>(i) * n, bias_, sizeof(float) * n);
    cblas_sgemm_compute(by_rows, as_it_is, is_packed, m, n, k, x_, k, packed_, k, bias_ ? 1.f : 0.f, out_, n);
  }

  void moved() override {
    x_ = given_.x_at(), out_ = given_.out_at();
    bias_ = given_.bias.defined() ? given_.bias_at() : nullptr;
  }

 private:
  Operands given_;
  const float *packed_, *x_ = nullptr, *bias_ = nullptr;
  float* out_ = nullptr;
};

KernelPtr made_of(Operands operands) {
  if (!cblas_sgemm_compute || !at::native::data_ptr_from_mkldnn) return nullptr;
  return std::make_unique<Mkl>(std::move(operands));
}

// Run `op` and the kernel on random rows: the same bytes three times.
bool agrees(const c10::OperatorHandle& op, const Stack& args, const Operands& given) {
  const c10::InferenceMode inference(true);
  Operands scratch = given;
  scratch.x = at::empty(given.x.sizes(), given.x.options()), scratch.out = at::empty(given.out.sizes(), given.out.options());
  const KernelPtr kernel = made_of(scratch);
  if (!kernel) return false;
  size_t place = 0;
  for (int round = 0; round < 3; ++round) {
    fill_with_noise(scratch.x, place);
    scratch.out.fill_(std::numeric_limits<float>::quiet_NaN());
    kernel->run();
    Stack stack = args;
    stack[0] = scratch.x;
    op.callBoxed(stack);
    const at::Tensor expected = stack[0].toTensor();
    if (expected.sizes() != scratch.out.sizes() || !expected.is_contiguous()) return false;
    if (std::memcmp(expected.const_data_ptr(), scratch.out.const_data_ptr(), expected.nbytes())) return false;
  }
  return true;
}

// What tells two products apart but for the values of their operands.
std::string described(const Operands& given) {
  std::string text;
  for (const int64_t number :
       {given.rows, given.inner, given.columns, int64_t{given.bias.defined()}, int64_t{at::get_num_threads()}, product_settings()})
    text += std::to_string(number) + ' ';
  return text;
}

}  // namespace

KernelPtr packed_kernel(const c10::OperatorHandle& op, const Stack& args, const at::Tensor& out) {
  static std::map<std::string, bool> answers;
  const auto given = operands_of(op, args, out);
  if (!given) return nullptr;
  const bool same = remembered(answers, described(*given), [&] { return agrees(op, args, *given); });
  return same ? made_of(*given) : nullptr;
}

uintptr_t address_of_packed(const at::Tensor& packed) {
  return at::native::data_ptr_from_mkldnn ? reinterpret_cast<uintptr_t>(at::native::data_ptr_from_mkldnn(packed)) : 0;
}

}  // namespace npucompose
