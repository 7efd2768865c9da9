#include "pointwise.h"

#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>

#include "onednn_functions.h"
#include "torch_internal.h"
#include "trial.h"

namespace npucompose {

#ifdef NPUCOMPOSE_CALLS_ONEDNN

namespace {

using torch::jit::Stack;

enum class Adds { nothing, other, to_its_result };

// A call of one of the operators, all of it that oneDNN is told.
struct PointwiseCall {
  at::Tensor x, weight, bias, other, out;
  size_t x_at = 0, other_at = 0;
  Adds adds = Adds::nothing;
  bool convolves = false, transposed = false;
  std::vector<int64_t> padding, output_padding, stride, dilation;
  int64_t groups = 1;
  std::string activation = "none", algorithm = "none";
};

std::string text_of(const c10::IValue& value) { return value.isString() && !value.toStringRef().empty() ? value.toStringRef() : "none"; }

// -- operators into products

std::optional<PointwiseCall> product_of(const c10::OperatorHandle& op, const Stack& args, const at::Tensor& out) {
  const auto& [name, overload] = op.operator_name();
  PointwiseCall found;
  found.convolves = name != "mkldnn::_linear_pointwise";
  if (name == "mkldnn::_convolution_pointwise_") found.adds = Adds::to_its_result, found.x_at = 1;
  else if (name == "mkldnn::_convolution_pointwise" && overload == "binary") found.adds = Adds::other, found.other_at = 1;
  else if (name == "mkldnn::_convolution_transpose_pointwise") found.transposed = true;
  else if ((found.convolves && name != "mkldnn::_convolution_pointwise") || !overload.empty()) return std::nullopt;
  size_t next = found.adds == Adds::nothing ? 1 : 2;  // past x, and past what is added
  const auto tensor = [&](size_t place) { return args.at(place).isTensor() ? args[place].toTensor() : at::Tensor(); };
  found.x = tensor(found.x_at), found.out = out;
  if (found.adds != Adds::nothing) found.other = tensor(found.other_at);
  found.weight = tensor(next), found.bias = tensor(next + 1), next += 2;
  if (found.convolves) {
    found.output_padding = {0, 0};
    for (auto* list : {&found.padding, &found.output_padding, &found.stride, &found.dilation}) {
      if (list == &found.output_padding && !found.transposed) continue;
      *list = args.at(next++).toIntVector();
      if (list->size() != 2) return std::nullopt;
    }
    found.groups = args.at(next++).toInt();
  }
  if (found.adds != Adds::nothing) {
    const c10::IValue& alpha = args.at(next + 1);
    if (args.at(next).toStringRef() != "add" || (!alpha.isNone() && !alpha.toScalar().equal(1))) return std::nullopt;
    next += 2;
  }
  found.activation = text_of(args.at(next)), found.algorithm = text_of(args.at(next + 2));
  return found;
}

// Float32 throughout, channels last where it convolves, else row by row, and nothing so large that an int cannot count it.
bool fits(const PointwiseCall& p) {
  const auto format = p.convolves ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  const auto plain = [&](const at::Tensor& t) {
    return t.defined() && t.layout() == at::kStrided && t.scalar_type() == at::kFloat && t.numel() &&
        t.numel() < std::numeric_limits<int>::max() && (!p.convolves || t.dim() == 4) && t.dim() >= 2 &&
        t.is_contiguous(format);
  };
  if (!plain(p.x) || !plain(p.out) || !p.weight.defined() || !p.weight.is_mkldnn()) return false;
  if (p.weight.dim() != (p.convolves ? 4 : 2)) return false;
  if (p.bias.defined() && (p.bias.scalar_type() != at::kFloat || p.bias.dim() != 1 || !p.bias.is_contiguous())) return false;
  return p.adds == Adds::nothing || (plain(p.other) && p.other.sizes() == p.out.sizes());
}

// -- products into primitives

// False for an activation that is left to torch.
bool append(dnnl_post_ops_t operations, const PointwiseCall& p) {
  dnnl_alg_kind_t kind;
  float alpha = 0;
  if (p.activation == "none") return true;
  if (p.activation == "relu") kind = dnnl_eltwise_relu;
  else if (p.activation == "sigmoid") kind = dnnl_eltwise_logistic;
  else if (p.activation == "tanh") kind = dnnl_eltwise_tanh;
  else if (p.activation == "swish") kind = dnnl_eltwise_swish, alpha = 1;
  else if (p.activation == "gelu") kind = p.algorithm == "tanh" ? dnnl_eltwise_gelu_tanh : dnnl_eltwise_gelu_erf;
  else return false;
  onednn::check(onednn::dnnl_post_ops_append_eltwise(operations, kind, alpha, 0));
  return true;
}

onednn::MemoryDesc laid_out(const std::vector<int64_t>& sizes, dnnl_format_tag_t tag) {
  return onednn::MemoryDesc(
      onednn::dnnl_memory_desc_create_with_tag, static_cast<int>(sizes.size()), sizes.data(), dnnl_f32, tag);
}

// Rows, and what a row has.
std::vector<int64_t> as_matrix(const at::Tensor& t) { return {t.numel() / t.size(-1), t.size(-1)}; }

std::vector<int64_t> weight_sizes(const PointwiseCall& p) {
  std::vector<int64_t> sizes = p.weight.sizes().vec();
  if (p.groups > 1) sizes[0] /= p.groups, sizes.insert(sizes.begin(), p.groups);
  return sizes;
}

constexpr int64_t kMostScratch = 1 << 20;  // bytes; what takes more is left to torch, which borrows them for a call

class Pointwise final : public Kernel {
 public:
  // Null where oneDNN would compute in another way than the weight was packed for.
  static KernelPtr of(const PointwiseCall& p) {
    const auto tag = p.convolves ? dnnl_nhwc : dnnl_ab;
    const auto described = [&](const at::Tensor& t) { return laid_out(p.convolves ? t.sizes().vec() : as_matrix(t), tag); };
    const auto x = described(p.x), out = described(p.out), weight = laid_out(weight_sizes(p), dnnl_format_tag_any);
    std::optional<onednn::MemoryDesc> bias;
    if (p.bias.defined()) bias.emplace(laid_out({p.bias.size(0)}, dnnl_x));
    onednn::PostOps operations(onednn::dnnl_post_ops_create);
    if (p.adds == Adds::to_its_result)
      onednn::check(onednn::dnnl_post_ops_append_sum(operations.get(), 1, 0, dnnl_data_type_undef));
    if (p.adds == Adds::other)
      onednn::check(onednn::dnnl_post_ops_append_binary(operations.get(), dnnl_binary_add, out.get()));
    if (!append(operations.get(), p)) return nullptr;
    onednn::Attributes attributes(onednn::dnnl_primitive_attr_create);
    onednn::check(onednn::dnnl_primitive_attr_set_post_ops(attributes.get(), operations.get()));
    onednn::check(onednn::dnnl_primitive_attr_set_scratchpad_mode(attributes.get(), dnnl_scratchpad_mode_user));
    const auto made = made_of(p, x.get(), weight.get(), bias ? bias->get() : nullptr, out.get(), attributes.get());
    const auto* packed = onednn::dnnl_primitive_desc_query_md(made.get(), dnnl_query_weights_md, 0);
    const auto* scratch = onednn::dnnl_primitive_desc_query_md(made.get(), dnnl_query_scratchpad_md, 0);
    const auto most = static_cast<int64_t>(onednn::dnnl_memory_desc_get_size(scratch));
    if (static_cast<int64_t>(onednn::dnnl_memory_desc_get_size(packed)) != at::native::nbytes_from_mkldnn(p.weight)) return nullptr;
    if (most > kMostScratch) return nullptr;
    auto kernel = std::unique_ptr<Pointwise>(new Pointwise(made.get()));
    kernel->follow(DNNL_ARG_SRC, x.get(), p.x);
    kernel->follow(DNNL_ARG_DST, out.get(), p.out);
    if (bias) kernel->follow(DNNL_ARG_BIAS, bias->get(), p.bias);
    if (p.adds == Adds::other) kernel->follow(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, out.get(), p.other);
    kernel->weight_ = p.weight, kernel->scratch_ = at::empty({most}, at::kByte);
    kernel->give(DNNL_ARG_WEIGHTS, packed, at::native::data_ptr_from_mkldnn(p.weight));
    kernel->give(DNNL_ARG_SCRATCHPAD, scratch, kernel->scratch_.mutable_data_ptr());
    return kernel;
  }

  void run() override {
    onednn::check(onednn::dnnl_primitive_execute(
        primitive_.get(), stream_.get(), static_cast<int>(given_.size()), given_.data()));
  }

  void moved() override {
    for (size_t i = 0; i < followed_.size(); ++i)
      onednn::check(onednn::dnnl_memory_set_data_handle(given_[i].memory, address(followed_[i])));
  }

 private:
  explicit Pointwise(const_dnnl_primitive_desc_t desc)
      : primitive_(onednn::dnnl_primitive_create, desc),
        stream_(onednn::dnnl_stream_create, onednn::engine(), unsigned{dnnl_stream_default_flags}) {}

  static onednn::PrimitiveDesc made_of(
      const PointwiseCall& p, const_dnnl_memory_desc_t x, const_dnnl_memory_desc_t weight, const_dnnl_memory_desc_t bias,
      const_dnnl_memory_desc_t out, const_dnnl_primitive_attr_t attributes) {
    if (!p.convolves)
      return onednn::PrimitiveDesc(
          onednn::dnnl_inner_product_forward_primitive_desc_create, onednn::engine(), dnnl_forward_inference, x, weight,
          bias, out, attributes);
    std::vector<int64_t> between = p.dilation, after = p.padding;  // oneDNN counts what is left out
    for (int64_t& step : between) --step;
    for (size_t i = 0; i < after.size(); ++i) after[i] -= p.output_padding[i];
    const auto create = p.transposed ? onednn::dnnl_deconvolution_forward_primitive_desc_create
                                     : onednn::dnnl_convolution_forward_primitive_desc_create;
    return onednn::PrimitiveDesc(
        create, onednn::engine(), dnnl_forward_inference, p.transposed ? dnnl_deconvolution_direct : dnnl_convolution_direct,
        x, weight, bias, out, p.stride.data(), between.data(), p.padding.data(), after.data(), attributes);
  }

  static void* address(const at::Tensor& t) { return const_cast<void*>(t.const_data_ptr()); }

  // What may lie elsewhere later comes before all that stays.
  void follow(int argument, const_dnnl_memory_desc_t desc, const at::Tensor& tensor) {
    followed_.push_back(tensor);
    give(argument, desc, address(tensor));
  }

  void give(int argument, const_dnnl_memory_desc_t desc, void* place) {
    memories_.emplace_back(onednn::dnnl_memory_create, desc, onednn::engine(), place);
    given_.push_back({argument, memories_.back().get()});
  }

  const onednn::Primitive primitive_;
  const onednn::Stream stream_;
  std::vector<onednn::Memory> memories_;
  std::vector<dnnl_exec_arg_t> given_;
  std::vector<at::Tensor> followed_;
  at::Tensor weight_, scratch_;
};

// -- the trial

// Run `op` and the kernel on random operands: the same bytes three times.
bool agrees(const c10::OperatorHandle& op, const Stack& args, const PointwiseCall& given) {
  const c10::InferenceMode inference(true);
  const auto like = [](const at::Tensor& t) { return at::empty_strided(t.sizes(), t.strides(), t.options()); };
  PointwiseCall mine = given;
  mine.x = like(given.x), mine.out = like(given.out);
  if (given.adds == Adds::other) mine.other = like(given.other);
  const KernelPtr kernel = Pointwise::of(mine);
  if (!kernel) return false;
  Stack theirs = args;
  theirs[given.x_at] = mine.x;
  at::Tensor added = mine.other;
  if (given.adds == Adds::to_its_result) added = like(given.out);
  if (given.adds != Adds::nothing) theirs[given.other_at] = added;
  size_t place = 0;
  for (int round = 0; round < 3; ++round) {
    fill_with_noise(mine.x, place);
    if (given.adds != Adds::nothing) fill_with_noise(added, place);
    if (given.adds == Adds::to_its_result) std::memcpy(mine.out.mutable_data_ptr(), added.const_data_ptr(), added.nbytes());
    else std::memset(mine.out.mutable_data_ptr(), 0xff, mine.out.nbytes());  // NaN
    kernel->run();
    Stack stack = theirs;
    op.callBoxed(stack);
    const at::Tensor expected = stack[0].toTensor();
    if (expected.sizes() != mine.out.sizes() || expected.strides() != mine.out.strides()) return false;
    if (std::memcmp(expected.const_data_ptr(), mine.out.const_data_ptr(), expected.nbytes())) return false;
  }
  return true;
}

// What tells two products apart but for the values of their operands.
std::string described(const c10::OperatorHandle& op, const PointwiseCall& p) {
  std::string text = op.operator_name().name + ' ' + p.activation + ' ' + p.algorithm;
  const auto numbers = [&text](at::IntArrayRef list) {
    for (const int64_t number : list) text += ' ' + std::to_string(number);
    text += ';';
  };
  numbers(p.x.sizes()), numbers(p.out.sizes()), numbers(p.weight.sizes());
  numbers(p.padding), numbers(p.output_padding), numbers(p.stride), numbers(p.dilation);
  numbers({p.groups, int64_t{p.bias.defined()}, static_cast<int64_t>(p.adds), at::native::nbytes_from_mkldnn(p.weight)});
  numbers({int64_t{at::get_num_threads()}, product_settings(), convolution_settings()});
  return text;
}

bool is_the_headers() {
  const auto* version = onednn::dnnl_version();
  return version->major == DNNL_VERSION_MAJOR && version->minor == DNNL_VERSION_MINOR;
}

}  // namespace

KernelPtr pointwise_kernel(const c10::OperatorHandle& op, const Stack& args, const at::Tensor& out) {
  static std::map<std::string, bool> answers;
  if (op.operator_name().name.rfind("mkldnn::", 0) != 0 || !is_the_headers()) return nullptr;
  try {
    const auto given = product_of(op, args, out);
    if (!given || !fits(*given)) return nullptr;
    const bool same = remembered(answers, described(op, *given), [&] { return agrees(op, args, *given); });
    return same ? Pointwise::of(*given) : nullptr;
  } catch (const std::exception&) {  // whatever the library complains about: the operator itself is used
    return nullptr;
  }
}

#else

KernelPtr pointwise_kernel(const c10::OperatorHandle&, const torch::jit::Stack&, const at::Tensor&) { return nullptr; }

#endif

}  // namespace npucompose
