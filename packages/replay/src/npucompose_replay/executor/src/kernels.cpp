// Which operators run without the dispatcher, and the trial that says whether they give the same bits.

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "torch_internal.h"
#include "trial.h"

namespace npucompose {
namespace {

using Make = KernelPtr (*)(const Stack& values);

bool is_out_variant(const c10::FunctionSchema& schema) {
  return !schema.arguments().empty() && schema.arguments().back().is_out();
}

// Arguments as impl() wants them: an in-place operator's output is its first argument, once more.
Stack with_outputs(const c10::OperatorHandle& op, const Stack& args) {
  Stack values = args;
  if (!is_out_variant(op.schema())) values.push_back(args[0]);
  return values;
}

// -- the trial

// Numbers of the normal distribution, made once: drawing as many as a large weight has takes longer than all else.
const at::Tensor& noise(at::ScalarType dtype) {
  static std::map<at::ScalarType, at::Tensor> made;
  at::Tensor& found = made[dtype];
  if (!found.defined()) {
    constexpr int64_t count = 65521;  // prime: rows of a matrix begin at different places of it
    at::Generator random = at::detail::createCPUGenerator(7);
    found = at::empty({count}, at::TensorOptions().dtype(dtype)).normal_(0, 1, random);
  }
  return found;
}

at::Tensor scratch_like(const at::Tensor& tensor) {
  int64_t span = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) span += (tensor.size(d) - 1) * tensor.stride(d);
  return at::empty({tensor.numel() ? span : 0}, tensor.options()).as_strided(tensor.sizes(), tensor.strides());
}

Stack scratch_of(const Stack& args) {
  Stack scratch;
  for (const auto& value : args)
    scratch.push_back(value.isTensor() ? c10::IValue(scratch_like(value.toTensor())) : value);
  return scratch;
}

// Fill the memory of all tensors, each from another place of the noise.
void refill(const Stack& args, size_t& place) {
  for (const auto& value : args)
    if (value.isTensor()) fill_with_noise(value.toTensor(), place);
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.storage().data(), b.storage().data(), a.storage().nbytes()) == 0;
}

// Run `make(args)` three times against the operator, on random values of the same layout.
template <class MakeKernel, class Intact>
bool agrees(const c10::OperatorHandle& op, const Stack& args, MakeKernel make, Intact intact) {
  c10::InferenceMode inference(true);
  size_t place = 0;
  Stack mine = scratch_of(args), theirs = scratch_of(args);
  KernelPtr kernel = make(mine);
  if (!kernel) return false;
  for (int round = 0; round < 3; ++round) {
    refill(mine, place);
    for (size_t i = 0; i < args.size(); ++i)
      if (mine[i].isTensor())
        std::memcpy(
            theirs[i].toTensor().storage().mutable_data(), mine[i].toTensor().storage().data(),
            mine[i].toTensor().storage().nbytes());
    kernel->run();
    if (!intact(*kernel)) return false;
    Stack stack = theirs;
    op.callBoxed(stack);
    for (size_t i = 0; i < args.size(); ++i)
      if (mine[i].isTensor() && !same_bytes(mine[i].toTensor(), theirs[i].toTensor())) return false;
  }
  return true;
}

// What tells two calls of one kernel apart but for the values of tensors, bit for bit; nobody reads it.
std::string described(const c10::OperatorHandle& op, const Stack& args) {
  std::string text = op.operator_name().name + '.' + op.operator_name().overload_name;
  const auto number = [&text](auto value) { text.append(reinterpret_cast<const char*>(&value), sizeof value); };
  number(int64_t{at::get_num_threads()});
  number(product_settings());
  for (const auto& value : args) {
    if (value.isTensor()) {
      const at::Tensor& t = value.toTensor();
      text += 't';
      number(t.dim());
      for (const int64_t size : t.sizes()) number(size);
      for (const int64_t stride : t.strides()) number(stride);
      number(static_cast<int64_t>(t.scalar_type()));
    } else if (value.isInt()) {
      text += 'i';
      number(value.toInt());
    } else if (value.isDouble()) {
      text += 'd';
      number(value.toDouble());
    } else {
      std::ostringstream other;
      other << value;
      text += 'o';
      number(static_cast<int64_t>(other.str().size()));
      text += other.str();
    }
  }
  return text;
}

// -- structured kernels

template <class S>
KernelPtr make_structured(const Stack& values) {
  return std::make_unique<StructuredOf<S>>(values);
}

template <class S>
bool is_intact(const Kernel& kernel) {
  return static_cast<const StructuredOf<S>&>(kernel).intact();
}

struct Entry {
  Make make;
  bool (*intact)(const Kernel&);
  bool iterates;
  size_t arguments;
};

const std::map<std::string, Entry>& entries() {
  static const std::map<std::string, Entry> table = {
#define NPUCOMPOSE_ENTRY(op, S)                                                                 \
  {op, Entry{make_structured<at::native::S>, is_intact<at::native::S>,                          \
             StructuredOf<at::native::S>::kIterates, StructuredOf<at::native::S>::kArguments}},
      NPUCOMPOSE_HELD(NPUCOMPOSE_ENTRY)
#undef NPUCOMPOSE_ENTRY
  };
  return table;
}

// One floating dtype everywhere, memory everywhere; half precision has its own ways with a scalar operand.
bool is_plain(const Stack& args) {
  std::optional<at::ScalarType> dtype;
  for (const auto& value : args) {
    if (!value.isTensor()) continue;
    const at::Tensor& t = value.toTensor();
    if (!t.defined() || !t.numel() || t.is_conj() || t.is_neg()) return false;
    if (dtype.value_or(t.scalar_type()) != t.scalar_type()) return false;
    dtype = t.scalar_type();
    if (t.dim() == 0 && at::isReducedFloatingType(*dtype)) return false;
  }
  return dtype && at::isFloatingType(*dtype);
}

// -- sgemm

// How a matrix lies for Fortran: by rows (a transpose in its eyes) or by columns, or neither.
struct Matrix {
  bool fits = false, by_rows = false;
  int leading = 1;

  explicit Matrix(const at::Tensor& t) {
    if (t.scalar_type() != at::kFloat || t.dim() != 2 || !t.numel() || t.is_conj() || t.is_neg()) return;
    const int64_t rows = t.size(0), columns = t.size(1);
    by_rows = (t.stride(1) == 1 || columns == 1) && (t.stride(0) >= columns || rows == 1);
    const bool by_columns = (t.stride(0) == 1 || rows == 1) && (t.stride(1) >= rows || columns == 1);
    const int64_t step = by_rows ? (rows == 1 ? columns : t.stride(0)) : (columns == 1 ? rows : t.stride(1));
    constexpr int64_t most = std::numeric_limits<int>::max();
    fits = (by_rows || by_columns) && step <= most && rows <= most && columns <= most;
    leading = static_cast<int>(step);
  }
};

// out = x @ y, or x @ y + a row that is laid into `out` first. Rows of out are columns for Fortran: out^T = y^T x^T.
class Sgemm final : public Kernel {
 public:
  static KernelPtr of(const at::Tensor& x, const at::Tensor& y, const at::Tensor& out, const at::Tensor& row) {
    const Matrix mx(x), my(y), mo(out);
    if (!sgemm_ || !mx.fits || !my.fits || !mo.fits || !mo.by_rows) return nullptr;
    if (row.defined() && (row.scalar_type() != at::kFloat || row.dim() != 1 || row.size(0) != out.size(1))) return nullptr;
    if (row.defined() && row.stride(0) != 1 && row.size(0) != 1) return nullptr;
    auto made = std::make_unique<Sgemm>();
    made->x_ = x, made->y_ = y, made->out_ = out, made->row_ = row;
    made->mx_ = mx.leading, made->my_ = my.leading, made->mo_ = mo.leading;
    made->tx_ = mx.by_rows ? 'n' : 't', made->ty_ = my.by_rows ? 'n' : 't';
    made->m_ = x.size(0), made->k_ = x.size(1), made->n_ = y.size(1);
    made->moved();
    return made;
  }

  void run() override {
    if (r_)
      for (int i = 0; i < m_; ++i) std::memcpy(o_ + static_cast<size_t>(i) * mo_, r_, sizeof(float) * n_);
    const float one = 1, before = r_ ? 1 : 0;
    sgemm_(&ty_, &tx_, &n_, &m_, &k_, &one, b_, &my_, a_, &mx_, &before, o_, &mo_);
  }

  void moved() override {
    a_ = x_.const_data_ptr<float>(), b_ = y_.const_data_ptr<float>();
    o_ = static_cast<float*>(const_cast<void*>(out_.const_data_ptr()));
    r_ = row_.defined() ? row_.const_data_ptr<float>() : nullptr;
  }

  Sgemm() : mx_(1), my_(1), mo_(1) {}

 private:
  at::Tensor x_, y_, out_, row_;
  const float *a_ = nullptr, *b_ = nullptr, *r_ = nullptr;
  float* o_ = nullptr;
  int mx_, my_, mo_, m_ = 0, n_ = 0, k_ = 0;
  char tx_ = 'n', ty_ = 'n';
};

KernelPtr sgemm_of(const c10::OperatorHandle& op, const Stack& args) {
  const auto& name = op.operator_name();
  if (name.overload_name != "out") return nullptr;
  if (name.name == "aten::mm" && args.size() == 3)
    return Sgemm::of(args[0].toTensor(), args[1].toTensor(), args[2].toTensor(), {});
  if (name.name == "aten::addmm" && args.size() == 6 && args[3].toScalar().equal(1) && args[4].toScalar().equal(1))
    return Sgemm::of(args[1].toTensor(), args[2].toTensor(), args[5].toTensor(), args[0].toTensor());
  return nullptr;
}

}  // namespace

void fill_with_noise(const at::Tensor& tensor, size_t& place) {
  const at::Tensor& from = noise(tensor.scalar_type());
  const size_t period = from.nbytes(), unit = from.element_size();
  auto* to = static_cast<char*>(tensor.storage().mutable_data());
  for (size_t done = 0, all = tensor.storage().nbytes(); done < all;) {
    const size_t begin = place * unit % period, some = std::min(period - begin, all - done);
    std::memcpy(to + done, static_cast<const char*>(from.const_data_ptr()) + begin, some);
    done += some;
    place += some / unit;
  }
  place += 7919;
}

KernelPtr blas_kernel(const c10::OperatorHandle& op, const Stack& args) {
  static std::map<std::string, bool> answers;
  KernelPtr kernel = sgemm_of(op, args);
  if (!kernel) return nullptr;
  const bool same = remembered(answers, described(op, args), [&] {
    return agrees(op, args, [&](const Stack& scratch) { return sgemm_of(op, scratch); }, [](const Kernel&) { return true; });
  });
  return same ? std::move(kernel) : nullptr;
}

KernelPtr held_kernel(const c10::OperatorHandle& op, const Stack& args) {
  static std::map<std::string, bool> answers;
  const auto& name = op.operator_name();
  auto found = entries().find(name.overload_name.empty() ? name.name : name.name + "." + name.overload_name);
  if (found == entries().end()) return nullptr;
  const Entry& entry = found->second;
  const Stack values = with_outputs(op, args);
  if (values.size() != entry.arguments) return nullptr;
  for (const auto& value : values)
    if (value.isTensor() && !value.toTensor().defined()) return nullptr;
  if (entry.iterates) {
    if (!is_plain(values)) return nullptr;
    const bool same = remembered(answers, described(op, args), [&] {
      return agrees(op, args, [&](const Stack& scratch) { return entry.make(with_outputs(op, scratch)); }, entry.intact);
    });
    if (!same) return nullptr;
  }
  try {
    return entry.make(values);
  } catch (const std::exception&) {  // this layout would need more than impl(): the operator itself is used
    return nullptr;
  }
}

}  // namespace npucompose
