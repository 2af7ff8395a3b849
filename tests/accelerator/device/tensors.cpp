// How tensors of the device are made, seen from another side, and copied.
#include "tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace pretend {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &allocator(), kKeys, c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const auto device = (to.is_privateuseone() ? to : from).device().index();
  const Kernel kernel(device);
  on_host(to).copy_(on_host(from));
  // A copy that a kernel makes of its own inputs is no reason for the host to wait.
  if (to.is_cpu() && !non_blocking && kernel.launch.is_outermost()) {
    synchronize(mark(device, current_stream(device)));
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar item(const at::Tensor& tensor) {
  const Kernel kernel(tensor);
  synchronize(tensor.device().index());
  return on_host(tensor).item();
}

const at::Tensor& resize(
    const at::Tensor& tensor, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(tensor, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Tensor& set_storage_and_shape(
    at::Tensor& tensor, at::Storage storage, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  at::native::checkSetStorage(tensor, std::move(storage), offset, size, stride, true);
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  std::vector<int64_t> strides = stride.vec();
  if (stride.data() == nullptr) {
    strides.assign(size.size(), 1);
    for (auto dim = int64_t(size.size()) - 2; dim >= 0; --dim) {
      strides[dim] = strides[dim + 1] * size[dim + 1];
    }
  }
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, strides);
  return tensor;
}

at::Tensor& set_storage(at::Tensor& tensor, at::Storage storage) {
  const auto num = int64_t(storage.nbytes() / tensor.itemsize());
  return set_storage_and_shape(tensor, std::move(storage), 0, {num}, {});
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  allocator().recordStream(tensor.storage().data_ptr(), stream);
}

at::Tensor as_strided(
    const at::Tensor& tensor, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, size, stride, offset);
}

at::Tensor view(const at::Tensor& tensor, c10::SymIntArrayRef size) {
  return at::native::view(tensor, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& tensor, c10::SymIntArrayRef size, c10::SymIntArrayRef) {
  return view(tensor, size);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", item);
  library.impl("resize_", resize);
  library.impl("set_.source_Storage", set_storage);
  library.impl("set_.source_Storage_storage_offset", set_storage_and_shape);
  library.impl("record_stream", record_stream);
  library.impl("as_strided", as_strided);
  library.impl("view", view);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("view_as_real", at::native::view_as_real);
  library.impl("view_as_complex", at::native::view_as_complex);
}

// Both sides of a copy are read through these bits; without this the copy would materialise them by a copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

} // namespace

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) {
    return tensor;
  }
  const auto num = int64_t(tensor.storage().nbytes() / tensor.itemsize());
  const auto options = tensor.options().device(at::kCPU).requires_grad(false);
  auto host = at::from_blob(tensor.storage().mutable_data(), {num}, [tensor](void*) {}, options);
  host = host.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) {
    host = at::_conj(host);
  }
  return tensor.is_neg() ? at::_neg_view(host) : host;
}

std::optional<at::Tensor> on_host(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && tensor->defined() ? std::optional(on_host(*tensor)) : std::nullopt;
}

} // namespace pretend
