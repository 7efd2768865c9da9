// All that torch does not promise to keep: structured kernel classes, the addresses in a TensorIterator, the BLAS symbol
// in libtorch_cpu, how tensors are made without the dispatcher. A torch that changed any of it does not compile here, and
// the portable replayer is used. `held_kernels.inc` is written by build.py from its HELD, for the classes this torch has.
#pragma once

#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/TensorIterator.h>
#include <ATen/TensorMeta.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <torch/version.h>

#include "held_kernels.inc"
#include "kernel.h"

// Fortran's sgemm as torch was linked with it; null where its BLAS is another one.
extern "C" __attribute__((weak)) void sgemm_(
    const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*, const float*,
    const int*, const float*, float*, const int*);

namespace npucompose {

using torch::jit::Stack;

// An argument of a structured kernel, owned: kernels take references, and TensorIterator keeps them.
template <class A>
struct Argument {
  A value;
  explicit Argument(const c10::IValue& v) : value(v.to<A>()) {}
  const A& get() const { return value; }
};
template <>
struct Argument<const at::Tensor&> {
  at::Tensor value;
  explicit Argument(const c10::IValue& v) : value(v.toTensor()) {}
  const at::Tensor& get() const { return value; }
};
template <>
struct Argument<const at::Scalar&> {
  at::Scalar value;
  explicit Argument(const c10::IValue& v) : value(v.toScalar()) {}
  const at::Scalar& get() const { return value; }
};
template <>
struct Argument<at::OptionalIntArrayRef> {
  std::optional<std::vector<int64_t>> value;
  explicit Argument(const c10::IValue& v) {
    if (!v.isNone()) value = v.toIntVector();
  }
  at::OptionalIntArrayRef get() const {
    return value ? at::OptionalIntArrayRef(at::IntArrayRef(*value)) : at::OptionalIntArrayRef();
  }
};
template <>
struct Argument<c10::string_view> {
  std::string value;
  explicit Argument(const c10::IValue& v) : value(v.toStringRef()) {}
  c10::string_view get() const { return value; }
};

// A structured kernel with fixed outputs: meta() finds them as they have to be, or throws. `More`: what a torch passes on
// beside the four arguments of each output; 2.6 to 2.11 have names of dimensions there.
template <class S, class SetOutput = decltype(&at::impl::MetaBase::set_output_strided)>
struct WithOutputs;

template <class S, class... More>
struct WithOutputs<
    S, void (at::impl::MetaBase::*)(int64_t, at::IntArrayRef, at::IntArrayRef, at::TensorOptions, More...)> : S {
  std::vector<at::Tensor> outputs;

  void set_output_strided(
      int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options, More... more) override {
    TORCH_CHECK(outputs[i].strides() == strides, "this kernel would compute into a buffer of other strides");
    place(i, sizes, strides, options, more...);
  }
  void set_output_raw_strided(
      int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options, More... more) override {
    place(i, sizes, strides, options, more...);
  }
  const at::Tensor& maybe_get_output(int64_t i) override { return outputs[i]; }

 private:
  void place(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options, More... more) {
    TORCH_CHECK(outputs[i].sizes() == sizes, "the output has another shape");
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, S>)
      S::set_output_raw_strided(i, sizes, strides, options, more...);
  }
};

// Pointwise kernels keep a TensorIterator between runs; this is what they must leave alone.
inline void check_iterator(const at::TensorIteratorBase& iterator, const std::vector<at::Tensor>& operands) {
  for (int i = 0; i < iterator.ntensors(); ++i) {
    const auto& base = iterator.tensor_base(i);
    bool ours = false;
    for (const auto& operand : operands) ours |= operand.unsafeGetTensorImpl() == base.unsafeGetTensorImpl();
    TORCH_CHECK(ours, "the iterator works on a converted copy of an operand");
    TORCH_CHECK(iterator.data_ptr(i) == base.const_data_ptr(), "the iterator begins within an operand");
  }
}

template <class S, class Meta, class Impl>
class Structured;

template <class S, class Base, class R, class... M, class... A>
class Structured<S, R (Base::*)(M...), void (S::*)(A...)> final : public Kernel {
  static_assert(std::is_void_v<R>, "kernels whose meta() computes arguments for impl() are not held");

 public:
  // `values`: the arguments of meta(), then the outputs.
  explicit Structured(const Stack& values) : Structured(values, std::index_sequence_for<A...>()) {
    for (size_t i = sizeof...(M); i < values.size(); ++i) kernel_.outputs.push_back(values[i].toTensor());
    set_up(std::index_sequence_for<M...>());
    if constexpr (kIterates) {
      std::vector<at::Tensor> operands;
      for (const auto& value : values)
        if (value.isTensor()) operands.push_back(value.toTensor());
      check_iterator(kernel_, operands);
      operands_ = kernel_.ntensors();
    }
  }

  void run() override {
    std::apply([this](const auto&... a) { kernel_.impl(a.get()...); }, arguments_);
  }

  void moved() override {
    if constexpr (kIterates)
      for (int i = 0; i < operands_; ++i)
        kernel_.unsafe_replace_operand(i, const_cast<void*>(kernel_.tensor_base(i).const_data_ptr()));
  }

  // Some kernels take the iterator apart while they run (a scalar operand of half precision): those cannot be held.
  bool intact() const {
    if constexpr (kIterates) return kernel_.ntensors() == operands_;
    return true;
  }

  static constexpr bool kIterates = std::is_base_of_v<at::TensorIteratorBase, S>;
  static constexpr size_t kArguments = sizeof...(A);

 private:
  template <size_t... I>
  Structured(const Stack& values, std::index_sequence<I...>) : arguments_(Argument<A>(values[I])...) {}

  template <size_t... I>
  void set_up(std::index_sequence<I...>) {
    kernel_.meta(std::get<I>(arguments_).get()...);
  }

  std::tuple<Argument<A>...> arguments_;
  WithOutputs<S> kernel_;
  int operands_ = 0;
};

template <class S>
using StructuredOf = Structured<S, decltype(&S::meta), decltype(&S::impl)>;

// A tensor object of its own over the memory of `tensor`, without the half microsecond that detach() takes.
inline at::Tensor another_over(const at::Tensor& tensor) {
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
}

// A copy in memory of its own, which lies there as `tensor` does in its: AOTAutograd makes views of other tensors by the
// offset and the strides of a result.
inline at::Tensor copy_as_it_lies(const at::Tensor& tensor) {
  if (!tensor.storage_offset() && tensor.is_non_overlapping_and_dense()) return tensor.clone();
  const int64_t last = tensor.numel() ? at::detail::computeStorageNbytes(
                                            tensor.sizes(), tensor.strides(), tensor.itemsize(), tensor.storage_offset())
                                      : 0;
  const at::Tensor bytes = at::empty({last}, at::TensorOptions().dtype(at::kByte));
  if (last) std::memcpy(bytes.mutable_data_ptr(), tensor.storage().data(), last);
  at::Tensor made = another_over(tensor);
  made.unsafeGetTensorImpl()->set_storage_keep_dtype(bytes.storage());
  return made;
}

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9)
// The setting of one library: torch 2.9 names library and operation by text, later ones by enumerators.
template <class Setting, class Backend, class Op>
int64_t setting_of(const at::Context& context, bool convolves, Setting (at::Context::*asked)(Backend, Op) const) {
  if constexpr (std::is_enum_v<Backend>)
    return static_cast<int64_t>((context.*asked)(Backend::MKLDNN, convolves ? Op::CONV : Op::MATMUL));
  else
    return (context.*asked)("mkldnn", convolves ? "conv" : "matmul").at(0);
}
#endif

// What decides which routine ATen takes for a product in float32: `medium` precision means bfloat16, for instance.
inline int64_t product_settings() {
  const auto& context = at::globalContext();
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9)
  const int64_t precision = setting_of(context, false, &at::Context::float32Precision);
#else
  const auto precision = static_cast<int64_t>(context.float32MatmulPrecision());
#endif
  return precision * 2 + (context.userEnabledMkldnn() ? 1 : 0);
}

// The same for a convolution by oneDNN, beside what decides it for a product.
inline int64_t convolution_settings() {
  const auto& context = at::globalContext();
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9)
  return setting_of(context, true, &at::Context::float32Precision) * 2 + (context.deterministicMkldnn() ? 1 : 0);
#else
  return context.deterministicMkldnn() ? 1 : 0;
#endif
}

// Where the first element lies; what has a lazy copy (copy on write) is not copied for it.
inline uintptr_t address_of(const at::TensorImpl& t) {
  const auto* begin = static_cast<const char*>(t.unsafe_storage().data());
  return reinterpret_cast<uintptr_t>(begin + t.storage_offset() * static_cast<int64_t>(t.itemsize()));
}

inline void move_storage(c10::StorageImpl& storage, void* data) {
  storage.set_data_ptr_noswap(at::DataPtr(data, at::kCPU));
}

}  // namespace npucompose
