// oneDNN's C interface in the libtorch_cpu that is loaded, which exports none of it: `onednn::dnnl_version()` and so on.
// `onednn_functions.inc` is written by onednn_functions.py for one file of torch, types come from torch's own header.
#pragma once

#include "onednn_functions.inc"

#ifdef NPUCOMPOSE_ONEDNN
#if __has_include(<oneapi/dnnl/dnnl.h>)
#define NPUCOMPOSE_CALLS_ONEDNN 1

#include <cstdint>
#include <memory>
#include <type_traits>

#include <ATen/core/Tensor.h>
#include <oneapi/dnnl/dnnl.h>

namespace at::native {
void* data_ptr_from_mkldnn(const at::Tensor& mkldnn_tensor);
int64_t nbytes_from_mkldnn(const at::Tensor& mkldnn_tensor);
}  // namespace at::native

namespace npucompose::onednn {

#define NPUCOMPOSE_FUNCTION(name, distance)                               \
  inline decltype(&::name) const name = reinterpret_cast<decltype(&::name)>( \
      reinterpret_cast<intptr_t>(&at::native::data_ptr_from_mkldnn) + (distance));
NPUCOMPOSE_ONEDNN(NPUCOMPOSE_FUNCTION)
#undef NPUCOMPOSE_FUNCTION

inline void check(dnnl_status_t status) { TORCH_CHECK(status == dnnl_success, "oneDNN ends with status ", int{status}); }

// Something of oneDNN's that has one owner.
template <class T, auto& destroy>
class Owned {
 public:
  // `create(&made, given...)`.
  template <class Create, class... Given>
  explicit Owned(Create create, Given... given) {
    T made = nullptr;
    check(create(&made, given...));
    held_.reset(made);
  }
  T get() const { return held_.get(); }

 private:
  struct Destroy {
    void operator()(T given) const { destroy(given); }
  };
  std::unique_ptr<std::remove_pointer_t<T>, Destroy> held_;
};

using Stream = Owned<dnnl_stream_t, dnnl_stream_destroy>;
using Memory = Owned<dnnl_memory_t, dnnl_memory_destroy>;
using MemoryDesc = Owned<dnnl_memory_desc_t, dnnl_memory_desc_destroy>;
using PostOps = Owned<dnnl_post_ops_t, dnnl_post_ops_destroy>;
using Attributes = Owned<dnnl_primitive_attr_t, dnnl_primitive_attr_destroy>;
using PrimitiveDesc = Owned<dnnl_primitive_desc_t, dnnl_primitive_desc_destroy>;
using Primitive = Owned<dnnl_primitive_t, dnnl_primitive_destroy>;

// Never destroyed: recordings that outlive static objects have memory of it.
inline dnnl_engine_t engine() {
  static const dnnl_engine_t made = [] {
    dnnl_engine_t engine = nullptr;
    check(dnnl_engine_create(&engine, dnnl_cpu, 0));
    return engine;
  }();
  return made;
}

}  // namespace npucompose::onednn

#endif
#endif
