#include "twinkle/model/weights/tensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "twinkle/io/safetensors.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::model {
namespace {

StoredTensor::Reader of(const at::Tensor& tensor) {
  return [tensor](int64_t offset, std::span<std::byte> out) {
    const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
    std::copy_n(bytes + offset, out.size(), out.begin());
  };
}

TEST(Tensors, AViewComesBackAsTheSameTensorOfEveryFloatType) {
  const ScratchDir dir;
  const at::Tensor value = at::arange(6, at::kFloat).reshape({2, 3}) - 2.5;  // exact in bfloat16
  for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor stored = value.to(type);
    write_safetensors(dir / "model.safetensors", std::vector{view_of("w", stored)});
    const Checkpoint checkpoint = Checkpoint::open(dir / "model.safetensors");
    const at::Tensor read = read_tensor(checkpoint.at("w"));
    EXPECT_EQ(read.scalar_type(), type);
    EXPECT_TRUE(at::equal(read, stored));
    EXPECT_TRUE(at::equal(to_float32(checkpoint.at("w")), value));
  }
}

TEST(Tensors, HalfPrecisionIsRead) {
  const at::Tensor half = at::tensor({0.5f, -1.25f, 3.0f}).to(at::kHalf);
  const StoredTensor stored{.name = "w", .dtype = Dtype::kF16, .shape = {3}, .reader = of(half)};
  EXPECT_TRUE(at::equal(to_float32(stored), half.to(at::kFloat)));
}

TEST(Tensors, BytesAtAnOddAddressAreRead) {
  const ScratchDir dir;
  const at::Tensor value = at::randn({5});
  std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("w":{"dtype":"F32","shape":[5],"data_offsets":[1,21]}})";
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  file += header + "x";
  file.append(static_cast<const char*>(value.const_data_ptr()), value.nbytes());
  write_text(dir / "x.safetensors", file);
  EXPECT_TRUE(at::equal(to_float32(Checkpoint::open(dir / "x.safetensors").at("w")), value));
}

TEST(Tensors, ATypeThatIsNoFloatIsNamed) {
  const ScratchDir dir;
  const at::Tensor ids = at::zeros({2}, at::kLong);
  write_safetensors(dir / "model.safetensors", std::vector{view_of("ids", ids)});
  const Checkpoint checkpoint = Checkpoint::open(dir / "model.safetensors");
  EXPECT_EQ(error_of([&] { to_float32(checkpoint.at("ids")); }),
            "model: tensor ids is I64; weights are F32, F16, BF16 or F64");
  EXPECT_EQ(error_of([&] { view_of("w", at::zeros({2}, at::kHalf)); }),
            "model: cannot write w of type Half");
}

}  // namespace
}  // namespace twinkle::model
